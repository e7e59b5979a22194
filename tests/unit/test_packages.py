from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from dispatcher.packages import defer, place


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package whose `__init__` imports a module that nobody needs."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "__init__.py").write_text("from library.heavy import weight\n")
    (folder / "heavy.py").write_text("weight = 7\n")
    (folder / "part.py").write_text("from . import neighbour\n")
    (folder / "neighbour.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in imported():
        del sys.modules[name]


def imported() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] == "library"}


def test_placed_package_has_its_modules_only() -> None:
    place("library")
    part = import_module("library.part")
    assert (imported(), part.neighbour) == (
        {"library", "library.part", "library.neighbour"},
        sys.modules["library.neighbour"],
    )
    with pytest.raises(AttributeError):
        getattr(sys.modules["library"], "weight")  # noqa: B009  # mypy knows no such module


def test_deferred_package_runs_its_init_once_a_name_of_it_is_used() -> None:
    defer("library")
    package = import_module("library")
    part = import_module("library.part")
    assert (imported(), package.part) == ({"library", "library.part", "library.neighbour"}, part)
    assert package.weight == 7
    assert "library.heavy" in imported()
    assert import_module("library") is package


def test_module_of_a_deferred_package_is_found_by_its_name_alone() -> None:
    defer("library")
    assert import_module("library").neighbour is sys.modules["library.neighbour"]
    assert "library.heavy" not in imported()


def test_deferred_package_lacks_what_it_lacks() -> None:
    defer("library")
    with pytest.raises(AttributeError, match="nothing"):
        _ = import_module("library").nothing


def test_package_that_was_imported_before_stays() -> None:
    package = import_module("library")
    defer("library")
    assert (place("library"), package.weight) == (package, 7)


def test_package_within_another_is_an_attribute_of_it(tmp_path: Path) -> None:
    inner = tmp_path / "library" / "inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("from library.heavy import weight\n")
    place("library")
    defer("library.inner")
    assert "library.heavy" not in imported()
    assert sys.modules["library"].inner.weight == 7


def test_missing_package_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        defer("no_such_library")
