"""`make release`, twice: from this checkout and from a copy with other times, at another place."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from testbed import build
from tests.cluster.install.installation import CHART, CHECKOUT, Helm
from tests.unit.test_release import VERSION

pytestmark = pytest.mark.exhaustive

EPOCH = "1700000000"
NAMES = {
    "SHA256SUMS",
    "aw.yaml",
    f"appwrapper-dispatcher-{VERSION}.cdx.json",
    f"appwrapper-dispatcher-{VERSION}.tgz",
    f"appwrapper_dispatcher-{VERSION}-py3-none-any.whl",
    f"appwrapper_dispatcher-{VERSION}.tar.gz",
    f"kubectl-aw-{VERSION}.tar.gz",
}


def release(checkout: Path, folder: Path) -> dict[str, bytes]:
    """The files of a release that is made in a checkout."""
    command = [sys.executable, "-m", "release", str(folder)]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=checkout, env=variables, check=True, capture_output=True)  # noqa: S603
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of this checkout."""
    folder = tmp_path_factory.mktemp("release")
    release(CHECKOUT, folder)
    return folder


@pytest.mark.timeout(120)
def test_two_releases_are_the_same_bytes(here: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another place"
    ignored = shutil.ignore_patterns(
        ".*_cache", ".venv", ".dev", ".hypothesis", ".git", "dist", "__pycache__"
    )
    shutil.copytree(CHECKOUT, copy, symlinks=True, ignore=ignored, copy_function=shutil.copyfile)

    again = release(copy, tmp_path / "dist")

    assert {each.name: each.read_bytes() for each in here.iterdir()} == again
    assert set(again) == NAMES


def test_sums_are_those_of_the_other_files(here: Path) -> None:
    lines = (here / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert sums == {
        name: hashlib.sha256((here / name).read_bytes()).hexdigest() for name in NAMES - {"SHA256SUMS"}
    }


def test_packaged_chart_gives_the_objects_of_its_folder(here: Path, tmp_path: Path) -> None:
    helm = Helm(build.ensure_helm(), tmp_path)
    [package] = here.glob("*.tgz")

    rendered = [list(yaml.safe_load_all(helm("template", "x", str(each)))) for each in (package, CHART)]

    assert rendered[0] == rendered[1]
    helm("lint", "--strict", str(package))
