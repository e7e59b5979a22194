"""The wheel is installable by itself: without a checkout it has its migrations and its CustomResourceDefinitions."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from dispatcher.store import migrate, revision
from release import sbom

CHECKOUT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
MOST_MEGABYTES = 40
"""Of the wheel and what it requires: what a person installs for `kubectl aw`."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel; it was built without network."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    offline = ("--no-index", "--no-deps")
    build = (*PIP, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(wheels), str(CHECKOUT))
    subprocess.run(build, check=True)  # noqa: S603
    [wheel] = wheels.glob("*.whl")
    subprocess.run((*PIP, "install", *offline, "--target", str(target), str(wheel)), check=True)  # noqa: S603
    return target


def run(installed: Path, program: str, *arguments: str, **environment: str) -> str:
    """What a console script of the wheel prints, run in its own folder."""
    command = [str(installed / "bin" / program), *arguments]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), **environment}
    ran = subprocess.run(  # noqa: S603
        command, cwd=installed, env=variables, check=True, capture_output=True, text=True
    )
    return ran.stdout


@pytest.mark.parametrize("program", ["dispatcher", "kubectl-aw"])
def test_console_scripts_print_the_version(installed: Path, program: str) -> None:
    assert run(installed, program, "--version") == f"{VERSION}\n"


def test_command_line_of_the_wheel_has_migrate(installed: Path) -> None:
    assert "Migrate the database to the schema of this version." in run(
        installed, "dispatcher", "migrate", "--help"
    )


def test_wheel_migrates_an_empty_database_with_its_own_migrations(installed: Path, empty_url: str) -> None:
    assert (installed / "dispatcher" / "migrations" / "env.py").is_file()

    said = run(installed, "dispatcher", "migrate", DISPATCHER_DATABASE_URL=empty_url)

    assert said == f"the database is at revision {revision.NEWEST}\n"
    migrate.check(empty_url)


def test_wheel_prints_the_definitions_of_the_checkout(installed: Path) -> None:
    printed = run(installed, "dispatcher", "crds")

    files = sorted((CHECKOUT / "crds").glob("*.yaml"))
    assert len(files) == 4
    assert list(yaml.safe_load_all(printed)) == [
        document for file in files for document in yaml.safe_load_all(file.read_text())
    ]


@pytest.fixture(scope="module")
def alone(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the packages that it requires without an extra, as pip would fill it."""
    folder = tmp_path_factory.mktemp("alone") / "packages"
    shutil.copytree(installed, folder)
    for name in sbom.closure(PROJECT["dependencies"]):
        for file in metadata.distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), target)
    compileall.compile_dir(folder, quiet=2)  # as pip and pipx do
    return folder


def run_alone(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run of the interpreter with the packages of this folder alone; `-S` leaves out those of the environment."""
    return subprocess.run(  # noqa: S603
        [sys.executable, "-S", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_wheel_alone_is_small(alone: Path) -> None:
    size = sum(each.stat().st_size for each in alone.rglob("*") if each.is_file())
    assert size < MOST_MEGABYTES * 10**6


def test_wheel_alone_runs_commands_over_files_hubs_and_databases(alone: Path, empty_url: str) -> None:
    pod = alone.parent / "pod.yaml"
    pod.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: none}]}}"
    )
    assert run_alone(alone, "-c", "import numpy").returncode == 1
    demand = run_alone(alone, "-m", "dispatcher", "demand", "-f", str(pod))
    assert (demand.returncode, "Pod/a" in demand.stdout) == (0, True)
    hub = run_alone(alone, "-m", "dispatcher", "running", "--kubeconfig", "/dev/null")
    assert (hub.returncode, "kubeconfig" in hub.stderr) == (1, True), hub.stderr
    migrate.migrate(empty_url)
    queue = run_alone(alone, "-m", "dispatcher", "queue", DISPATCHER_DATABASE_URL=empty_url)
    assert (queue.returncode, queue.stderr) == (0, "Nothing waits.\n")
