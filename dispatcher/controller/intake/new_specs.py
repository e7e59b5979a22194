"""The specs of new AppWrappers, within a bound on memory; specs beyond it are read again when intake reaches them.

Fifty thousand new AppWrappers at once come only with a new database, which is rare.
"""

from __future__ import annotations

from typing import Final

MOST_BYTES: Final = 2**25
"""32 MiB: the specs of some five thousand AppWrappers, or of a hundred of the largest."""


class NewSpecs:
    """Specs by uid, at most `most` bytes; the oldest stay, because intake reads them first."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most
        self._specs: dict[str, bytes] = {}

    def put(self, uid: str, spec: bytes) -> None:
        """Store a spec, in place of an earlier one, if there is room."""
        self.drop(uid)
        if spec and len(spec) <= self._left:
            self._specs[uid] = spec
            self._left -= len(spec)

    def get(self, uid: str) -> bytes | None:
        """The spec; None if there was no room for it."""
        return self._specs.get(uid)

    def drop(self, uid: str) -> None:
        """Drop the spec of an AppWrapper; safe to repeat."""
        self._left += len(self._specs.pop(uid, b""))
