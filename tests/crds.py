"""The custom resource definitions that ship with the product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def load_crds() -> list[dict[str, Any]]:
    """Every definition as the API server takes it, in the order of the file names."""
    folder = Path(__file__).parents[1] / "crds"
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.yaml"))]
