"""The plugin for krew: its archive, its manifest, and the launcher that installs the wheel at the first call."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from release import krew

PROJECT = {"version": "1.2.3", "description": "Queues AppWrappers"}
PYTHON = """\
#!/bin/sh
echo "$@" >>"{log}"
case "$*" in
    *version_info*) exit {code} ;;
    "-m venv "*)
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        printf '#!/bin/sh\\necho "plugin $@"\\n' >"$3/bin/kubectl-aw"
        chmod +x "$3/bin/kubectl-aw" ;;
esac
"""
"""A Python that writes down what it is asked for, and makes an environment whose plugin prints its arguments."""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "appwrapper_dispatcher-1.2.3-py3-none-any.whl"
    path.write_bytes(b"a wheel")
    return path


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    """The folder into which krew unpacks the archive."""
    folder = tmp_path / "store"
    with tarfile.open(fileobj=io.BytesIO(krew.archive(wheel, 1))) as packed:
        packed.extractall(folder, filter="data")
    return folder


def test_archive_is_the_same_for_the_same_wheel(wheel: Path) -> None:
    once = krew.archive(wheel, 1700000000)
    wheel.touch()
    assert krew.archive(wheel, 1700000000) == once


def test_manifest_names_the_program_and_the_sum_of_the_archive(wheel: Path) -> None:
    content = krew.archive(wheel, 1)
    plugin = yaml.safe_load(krew.manifest(PROJECT, "aw.tar.gz", content, "https://files.example/v1/"))
    [platform] = plugin["spec"]["platforms"]
    assert (plugin["kind"], plugin["metadata"], plugin["spec"]["version"]) == (
        "Plugin",
        {"name": "aw"},
        "v1.2.3",
    )
    assert platform["uri"] == "https://files.example/v1/aw.tar.gz"
    assert platform["sha256"] == hashlib.sha256(content).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        modes = {each.name: each.mode for each in packed}
    assert modes[platform["bin"]] == 0o755
    assert set(modes) == {"kubectl-aw", wheel.name, "LICENSE"}


def call(unpacked: Path, tmp_path: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Call the plugin by the link that krew makes."""
    python, link = tmp_path / "python", tmp_path / "kubectl-aw"
    python.write_text(PYTHON.format(log=tmp_path / "log", code=code))
    python.chmod(0o755)
    if not link.exists():
        link.symlink_to(unpacked / "kubectl-aw")
    environment = {"PATH": os.environ["PATH"], "KUBECTL_AW_PYTHON": str(python)}
    command = [str(link), "queue", "-A"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603


def test_first_call_installs_the_wheel_and_later_ones_do_not(
    unpacked: Path, tmp_path: Path, wheel: Path
) -> None:
    first, second = call(unpacked, tmp_path), call(unpacked, tmp_path)
    assert (first.stdout, second.stdout) == ("plugin queue -A\n", "plugin queue -A\n")
    assert (second.stderr, "once" in first.stderr) == ("", True)
    log = (tmp_path / "log").read_text().splitlines()
    assert [line for line in log if "pip install" in line] == [
        f"-m pip install --quiet --disable-pip-version-check {unpacked / wheel.name}"
    ]


def test_old_python_is_refused_before_anything_is_installed(unpacked: Path, tmp_path: Path) -> None:
    ran = call(unpacked, tmp_path, code=1)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "kubectl aw: Python 3.11 or newer is needed: set KUBECTL_AW_PYTHON to its path\n"
    assert not (unpacked / "venv").exists()
