"""The archive of `kubectl aw` for krew, and its manifest.

krew unpacks an archive and links one program of it. A wheel is none, so the archive has a launcher, which installs the
wheel beside itself at its first call. The manifest names the sum of the archive and where it is published.
Source: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

LAUNCHER = Path(__file__).parent / "kubectl-aw.sh"
LICENCE = Path(__file__).parents[1] / "LICENSE"
PROGRAM = "kubectl-aw"
UNPUBLISHED = "https://releases.example.com"
"""Where a release is that nobody has published; krew installs it from a file (docs/cli.md)."""
CAVEATS = """\
The first call needs Python 3.11 or newer, with venv, and the network: it installs the plugin's packages.
For completion, install the wheel with pipx instead, which also brings kubectl_complete-aw.
"""


def archive(wheel: Path, epoch: int) -> bytes:
    """The launcher, a wheel and the licence, all of one time; equal for equal arguments."""
    contents = {
        PROGRAM: (LAUNCHER.read_bytes(), 0o755),
        wheel.name: (wheel.read_bytes(), 0o644),
        LICENCE.name: (LICENCE.read_bytes(), 0o644),
    }
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        for name, (content, mode) in sorted(contents.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, mode
            target.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def manifest(project: Mapping[str, Any], name: str, content: bytes, folder: str) -> str:
    """The manifest of a project's plugin, whose archive `name` is published in a folder, which is a URL."""
    systems = {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
    plugin = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "aw"},
        "spec": {
            "version": f"v{project['version']}",
            "shortDescription": "Queue jobs as AppWrappers, and see why they wait",
            "description": f"{project['description']}.\n",
            "caveats": CAVEATS,
            "platforms": [
                {
                    "selector": {"matchExpressions": [systems]},
                    "uri": f"{folder.rstrip('/')}/{name}",
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "files": [{"from": "*", "to": "."}],
                    "bin": PROGRAM,
                }
            ],
        },
    }
    return yaml.safe_dump(plugin, sort_keys=False)
