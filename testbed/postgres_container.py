"""A Postgres in a Docker container of this machine.

The container publishes its port on the loopback address alone, where it trusts every account, because tests log in as
roles without a password. It has the settings of the embedded server, and is removed when its owner ends. A container
whose owner was killed is removed by the next one: testcontainers has a reaper for that, but it is another image to
download.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.processes import beginning_of, owner_name

if TYPE_CHECKING:
    from docker import DockerClient

IMAGE: Final = "postgres:18-alpine"
LOOPBACK: Final = "127.0.0.1"
OWNER: Final = "appwrapper-dispatcher.owner"
"""The label of a container with the process that owns it."""
LOOK_SECONDS: Final = 2


def engine_has(image: str) -> bool:
    """True if an engine answers at once and nothing needs to be downloaded."""
    # By the command: the Python client leaves a socket open if no engine answers.
    program = shutil.which("docker")
    if program is None:
        return False
    try:
        asked = subprocess.run(
            [program, "image", "inspect", image], capture_output=True, timeout=LOOK_SECONDS, check=False
        )
    except (subprocess.TimeoutExpired, OSError):
        return False
    return asked.returncode == 0


@contextlib.contextmanager
def container(image: str, superuser: str, settings: Mapping[str, str]) -> Iterator[str]:
    """Yields the libpq URL of a server in a new container, as its superuser; then removes the container.

    Downloads the image if the engine lacks it. Raises what the engine's client raises.
    """
    from testcontainers.community.postgres import PostgresContainer
    from testcontainers.core.config import ConnectionMode, testcontainers_config

    testcontainers_config.ryuk_disabled = True
    # Else the address depends on whether this machine looks like a container itself.
    testcontainers_config.connection_mode_override = ConnectionMode.docker_host
    server = PostgresContainer(image, username=superuser, dbname=superuser, driver=None)
    server.ports[str(server.port)] = (LOOPBACK,)  # type: ignore[assignment]  # the client takes an address too
    server.with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
    server.with_command(["postgres", *(f"-c{name}={value}" for name, value in settings.items())])
    server.with_kwargs(labels={OWNER: _owner(os.getpid())})
    _orphan_collector(server.get_docker_client().client)
    with server:
        yield server.get_connection_url(host=LOOPBACK)


def _orphan_collector(engine: DockerClient) -> None:
    """Removes the containers of killed owners."""
    from docker.errors import NotFound

    for each in engine.containers.list(all=True, filters={"label": OWNER}):
        if _has_ended(each.labels[OWNER]):
            # Another owner may have removed it meanwhile.
            with contextlib.suppress(NotFound):
                each.remove(force=True, v=True)


def _owner(pid: int) -> str:
    """A name for a process, also among the containers of an engine that processes of several containers share."""
    return f"{_pid_namespace()} {owner_name(pid)}"


def _has_ended(owner: str) -> bool:
    """True if the owner is known to have ended; nothing is known of a process in another pid namespace."""
    namespace, _, process = owner.partition(" ")
    pid, _, beginning = process.partition("@")
    return namespace == _pid_namespace() and beginning_of(int(pid)) != beginning


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


__all__ = ["IMAGE", "container", "engine_has"]
