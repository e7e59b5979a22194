"""Exceptions that one AppWrapper caused, as values: the core goes on with the others, and an adapter logs and counts.

No exception of one AppWrapper may reach another one. The core catches where it decides about one of them and nothing is
changed yet. Any other exception ends the plan, which may be half changed: it is dropped, and
`scheduling.cycle.isolation` finds the gangs that cause it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.core.model.records.pending_reasons import INTERNAL_ERROR
from dispatcher.core.model.records.record import Pending

UNDECIDED_BY_ERROR: Final = Pending(INTERNAL_ERROR, "internal error; see the dispatcher's log")


class Failure(NamedTuple):
    """An exception that an AppWrapper, by its uid, caused."""

    uid: str
    error: Exception

    @classmethod
    def of(cls, uid: str, error: Exception) -> Failure:
        """The failure of an AppWrapper. Raises the exception again if it is nobody's fault, as a lack of memory is."""
        if isinstance(error, MemoryError):
            raise error
        return cls(uid, error)
