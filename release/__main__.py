"""`python -m release`: the files of a release, and their sums: wheel, source, chart, krew plugin, bill of materials.

Two runs over the same files give the same bytes, wherever and whenever they run: every time in them is
SOURCE_DATE_EPOCH, which is by default the time of the last commit.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from release import krew, sbom
from testbed import build

CHECKOUT = Path(__file__).parents[1]
CHART = CHECKOUT / "manifests" / "chart"
VARIABLE = "SOURCE_DATE_EPOCH"
URL_VARIABLE = "RELEASE_URL"
"""The folder in which the files are going to be published, for the manifest of krew."""
SUMS = "SHA256SUMS"


def main() -> int:
    """Write the files of a release, or the wheel alone, into an empty folder."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder that is new or empty")
    parser.add_argument("--wheel", action="store_true", help="the wheel alone, which needs no Helm")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"release: {folder} is not empty: remove it, or name another folder", file=sys.stderr)
        return 1
    epoch = int(os.environ.get(VARIABLE) or time_of_last_commit())
    build_package(folder, epoch, "wheel")
    if not arguments.wheel:
        build_package(folder, epoch, "sdist")
        build_chart(folder, epoch)
        build_plugin(folder, epoch)
        build_sbom(folder, epoch)
    write_sums(folder)
    print((folder / SUMS).read_text(), end="")
    return 0


def time_of_last_commit() -> int:
    """The time of the last commit of the checkout, in seconds."""
    return int(run(["git", "log", "-1", "--format=%ct"]))


def build_package(folder: Path, epoch: int, target: str) -> None:
    """Build the wheel or the source, which are targets of the pinned hatchling."""
    run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", target],
        **{VARIABLE: str(epoch)},
    )


def build_chart(folder: Path, epoch: int) -> None:
    """Package the chart with Helm, which reads the files behind its links."""
    run([str(build.ensure_helm()), "package", str(CHART), "--destination", str(folder)])
    [package] = folder.glob("*.tgz")
    package.write_bytes(at_one_time(package.read_bytes(), epoch))


def at_one_time(package: bytes, epoch: int) -> bytes:
    """The same packed files in order of their names, all of one time, one owner and one mode."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(package)) as source,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        for each in sorted((each for each in source if each.isfile()), key=lambda each: each.name):
            member = tarfile.TarInfo(each.name)
            member.size, member.mtime, member.mode = each.size, epoch, 0o644
            target.addfile(member, source.extractfile(each))
    return packed.getvalue()


def build_plugin(folder: Path, epoch: int) -> None:
    """Pack the wheel for krew, and write the manifest."""
    project = read_project()
    [wheel] = folder.glob("*.whl")
    name, content = f"{krew.PROGRAM}-{project['version']}.tar.gz", krew.archive(wheel, epoch)
    (folder / name).write_bytes(content)
    url = os.environ.get(URL_VARIABLE) or krew.UNPUBLISHED
    (folder / "aw.yaml").write_text(krew.manifest(project, name, content, url))


def read_project() -> sbom.Project:
    """The project of pyproject.toml."""
    project: sbom.Project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return project


def build_sbom(folder: Path, epoch: int) -> None:
    """Write the bill of materials beside the wheel whose packages it lists."""
    project = read_project()
    bill = sbom.render(
        project, (CHECKOUT / "requirements.lock").read_text(), datetime.fromtimestamp(epoch, UTC)
    )
    (folder / f"{project['name']}-{project['version']}.cdx.json").write_text(bill)


def write_sums(folder: Path) -> None:
    """Write the sum of each file, as `sha256sum --check` reads them."""
    lines = [
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(folder.iterdir())
    ]
    (folder / SUMS).write_text("".join(lines))


def run(command: list[str], **environment: str) -> str:
    """The output of a command in the checkout; its errors go to stderr."""
    ran = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
