"""Exceptions that one AppWrapper caused, as values: the core goes on with the others, and an adapter logs and counts.

No exception of one AppWrapper may reach another one. The core catches where it decides about one of them and nothing is
half changed. Where that is not so, it raises `Failed`, and its caller drops what was planned.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from dispatcher.core.model.record import Pending

INTERNAL_ERROR: Final = "InternalError"
"""An exception ended the decision about the gang; it blocks no other gang, and is decided again later."""

UNDECIDED_BY_ERROR: Final = Pending(INTERNAL_ERROR, "internal error; see the dispatcher's log")


class Failure(NamedTuple):
    """An exception that an AppWrapper, by its uid, caused."""

    uid: str
    error: Exception


class Failed(Exception):
    """A plan was ended by an exception about one gang (`uid`), and may be half changed: it is to be dropped."""

    def __init__(self, uid: str, error: Exception) -> None:
        super().__init__(f"{uid}: {type(error).__name__}")
        self.uid = uid
        self.error = error


class Subject(Struct):
    """The gang that a plan is about at this moment, by its uid; empty while it is about none or about all."""

    uid: str = ""

    def failed(self, error: Exception) -> Exception:
        """The exception to raise for this one: `Failed` if it is about one gang, and memory is not the reason."""
        if isinstance(error, Failed | MemoryError) or not self.uid:
            return error
        return Failed(self.uid, error)
