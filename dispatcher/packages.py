"""Packages in place without what their `__init__` imports, for libraries of which the dispatcher uses a part.

Running a package's `__init__` comes before the import of any of its modules. Where it imports much that is not needed,
the package is put into `sys.modules` first, and its modules are imported by their own names. A package that something
has imported before stays as it is. A release that has moved a module raises ImportError at the start.
"""

from __future__ import annotations

import sys
from importlib import import_module, reload
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


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
