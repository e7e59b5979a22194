"""Dicts that stay small: what is remembered to save work, and may be forgotten."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(OrderedDict[Key, Value]):
    """Keeps the entries that were written last, `most` of them; the others are dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)


def remember(known: dict[Key, Value], most: int, key: Key, value: Value) -> None:
    """Keep an entry in a dict that threads share; all others are dropped once there are `most`.

    Each step is one operation of `dict`, which no other thread sees half done. Those of a `BoundedDict` are several.
    """
    if len(known) >= most:
        known.clear()
    known[key] = value
