"""The custom resource definitions that ship with the product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "crds"


def load_crds() -> list[dict[str, Any]]:
    """Every definition as the API server takes it, in the order of the file names."""
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.yaml"))]
