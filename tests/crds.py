"""The custom resource definitions that ship with the product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.yaml_files import load_yaml

FOLDER = Path(__file__).parents[1] / "crds"


def load_crds() -> list[dict[str, Any]]:
    """Every definition as the API server takes it, in the order of the file names."""
    return list(map(load_yaml, sorted(FOLDER.glob("*.yaml"))))
