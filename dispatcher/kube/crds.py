"""The custom resource definitions that ship with the product.

They are files, so that people can read them and ``kubectl apply`` them: inside the package in a wheel, in the folder
beside the package in a checkout.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml


def load_crds() -> list[dict[str, Any]]:
    """Every definition as the API server takes it, in the order of the file names."""
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in _files()]


def _files() -> list[Traversable]:
    found = (file for file in _folder().iterdir() if file.name.endswith(".yaml"))
    return sorted(found, key=lambda file: file.name)


def _folder() -> Traversable:
    packaged = files("dispatcher") / "crds"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "crds"
