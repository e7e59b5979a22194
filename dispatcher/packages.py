"""Packages in place without what their `__init__` imports, and which packages are of an extra.

Of some libraries the dispatcher uses a part. Running a package's `__init__` comes before the import of any of its
modules. Where it imports much that is not needed, the package is put into `sys.modules` first, and its modules are
imported by their own names. A package that something has imported before stays as it is. A release that has moved a
module raises ImportError at the start.
"""

from __future__ import annotations

import sys
from importlib import import_module, reload
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

EXTRAS: Final = {
    "numpy": "plan",
    "jinja2": "web",
    **dict.fromkeys(
        (
            "aiohttp",
            "alembic",
            "apprise",
            "kubernetes_asyncio",
            "prometheus_client",
            "pydantic",
            "sqlalchemy",
            "structlog",
        ),
        "server",
    ),
}
"""Packages that commands of people do without, and the extra of pyproject.toml that installs each."""


def is_installed(name: str) -> bool:
    """True if the package can be imported; it is not imported."""
    return find_spec(name) is not None


def missing(name: str) -> str:
    """The sentence about a package of an extra that is not installed."""
    package = name.partition(".")[0]
    extra = EXTRAS[package]
    return (
        f"{package} is not installed. It comes with the extra {extra}: in place of the package or wheel NAME, install "
        f"'NAME[{extra}]' (docs/cli.md, Get it)"
    )


def place(name: str) -> ModuleType:
    """The package, of which only the modules can be imported, unless it was imported before."""
    if name not in sys.modules:
        spec = find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(name, name=name)
        sys.modules[name] = package = module_from_spec(spec)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, package)
    return sys.modules[name]


def defer(name: str) -> None:
    """Let the package be imported, and run its `__init__` once anything of it is used but its modules."""
    if name in sys.modules:
        return
    package = place(name)

    def found(used: str) -> Any:  # noqa: ANN401  # whatever it is
        if find_spec(f"{name}.{used}"):
            return import_module(f"{name}.{used}")
        del package.__dict__["__getattr__"]
        return getattr(reload(package), used)

    package.__dict__["__getattr__"] = found
