"""Exceptions at any function of the core, for calls that are made for one gang only.

A module or class of the core gets another function in the place of its own, which raises if the gang is among its
arguments. Modules that imported the function by its name get it, too.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any, Final

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.model.gangs.pods import Pod
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from tests.unit.controller.store import FakeStore

CORE: Final = "dispatcher.core"


class InjectedError(Exception):
    """The exception of a function that a test chose."""


@dataclass
class Gang:
    """The gang whose calls count, and the functions that were called for it while `is_active`.

    Unless it `is_in_amounts`, calls with nothing but amounts are not about it: an account knows no gang.
    """

    record: Record
    calls: set[str] = field(default_factory=set)
    raising: str = ""
    error: Exception | None = None
    raised: int = 0
    is_active: bool = True
    is_in_amounts: bool = True

    def called(self, name: str, arguments: Sequence[object]) -> None:
        """Note a call; raise if it is the chosen function and the call is for this gang only."""
        if not self.is_active or (self.raising and name != self.raising):
            return
        if any(map(self._is_about, arguments)):
            self.calls.add(name)
            if name == self.raising:
                self.raised += 1
                raise self.error or InjectedError(name)

    def _is_about(self, value: object) -> bool:
        """True for the record, its uid, attempt, reason, gang, pod sets or pods, and for a value with one of these.

        The requests of its pod sets are about it, too.
        """
        own = self.record
        if value is own or value is own.gang or value is own.requirements:
            return True
        if type(value) is str:
            return value == own.uid
        if type(value) is Resources:
            amounts = (own.gang.demand, *(each.requests for each in own.gang.pod_sets))
            return self.is_in_amounts and value in amounts
        if type(value) in {tuple, list} and len(value) == 1:  # type: ignore[arg-type]  # has a length
            return self._is_about(next(iter(value)))  # type: ignore[call-overload]
        if any(value is each for each in own.gang.pod_sets) or value is own.gang.pod_sets:
            return True
        if value is not None and (value is own.attempt or value is own.pending):
            return True
        if type(value) is Pod and own.uid in (value.owner, value.claim):
            return True
        inner = getattr(value, "record", None) or getattr(value, "pods", None) or getattr(value, "gang", None)
        return inner is not None and not callable(inner) and inner is not value and self._is_own(inner)

    def _is_own(self, value: object) -> bool:
        own = self.record
        return any(value is each for each in (own, own.gang, *own.gang.pod_sets)) or (
            isinstance(value, Record) and value.uid == own.uid
        )


COMMITS = ((Cache, "put"), (FakeStore, "commit"))


@contextmanager
def injected(gang: Gang, leaves_out: Sequence[tuple[type, str]] = COMMITS) -> Iterator[None]:
    """Have every function of the core ask the gang first, or only the one that is to raise.

    Commits and the cache are left out: the database has a decision before the cache does, so an exception in the cache
    ends the session of the leader.
    """
    with undone() as change:
        for place in [places()[gang.raising]] if gang.raising else places().values():
            for owner, name in place.owners:
                change(owner, name, place.made(partial(_asking, gang, place.label, place.function)))
        for owner, name in leaves_out:
            _leave_out(change, gang, owner, name)
        yield


def rooms_of(names: Iterable[str]) -> set[str]:
    """The rooms of the core that have these functions."""
    return {name.removeprefix(f"{CORE}.").partition(".")[0] for name in names}


@dataclass
class Place:
    """A function, where it is named, and what makes of a function the value that stands there."""

    label: str
    function: FunctionType
    owners: list[tuple[Any, str]]
    made: Callable[[Callable[[], Callable[..., Any]]], object]


@cache
def places() -> dict[str, Place]:
    """The functions of the core by their full names."""
    found: dict[str, Place] = {}
    modules = [*_modules_of(CORE)]
    named: dict[int, list[tuple[Any, str]]] = {}
    for module in list(sys.modules.values()):
        if module.__name__.startswith("dispatcher."):
            for name, value in vars(module).items():
                if isinstance(value, FunctionType):
                    named.setdefault(id(value), []).append((module, name))
    for module in modules:
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, FunctionType):
                label = f"{module.__name__}.{name}"
                found[label] = Place(label, value, named[id(value)], lambda asking: asking())
            elif isinstance(value, type):
                found |= {each.label: each for each in _methods_of(value)}
    return found


def _modules_of(name: str) -> Iterator[ModuleType]:
    package = importlib.import_module(name)
    for info in pkgutil.walk_packages(package.__path__, f"{name}."):
        yield importlib.import_module(info.name)


def _methods_of(owner: type) -> Iterator[Place]:
    for name, value in list(vars(owner).items()):
        label, owners = f"{owner.__module__}.{owner.__qualname__}.{name}", [(owner, name)]
        if name.startswith("__"):
            continue
        if isinstance(value, FunctionType):
            yield Place(label, value, owners, lambda asking: asking())
        elif isinstance(value, property) and isinstance(value.fget, FunctionType):
            yield Place(label, value.fget, owners, lambda asking: property(asking()))
        elif isinstance(value, classmethod) and isinstance(value.__func__, FunctionType):
            yield Place(label, value.__func__, owners, lambda asking: classmethod(asking()))
        elif isinstance(value, staticmethod) and isinstance(value.__func__, FunctionType):
            yield Place(label, value.__func__, owners, lambda asking: staticmethod(asking()))


Change = Callable[[Any, str, object], None]


@contextmanager
def undone() -> Iterator[Change]:
    """Sets attributes, and puts back what was there before."""
    before: list[tuple[Any, str, object]] = []

    def change(owner: Any, name: str, value: object) -> None:  # noqa: ANN401
        before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    try:
        yield change
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _asking(gang: Gang, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def asking(*arguments: object, **named: object) -> object:
        gang.called(name, (*arguments, *named.values()))
        return function(*arguments, **named)

    return asking


def _leave_out(change: Change, gang: Gang, owner: type, name: str) -> None:
    function = vars(owner).get(name)
    if function is None:
        return

    @functools.wraps(function)
    def silent(*arguments: object, **named: object) -> object:
        was_active, gang.is_active = gang.is_active, False
        try:
            return function(*arguments, **named)
        finally:
            gang.is_active = was_active

    change(owner, name, silent)
