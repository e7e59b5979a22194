"""The specs of AppWrappers that were not taken in yet, as far as memory may be used for them.

The others are read again when their turn comes: fifty thousand newcomers at once are a new database's, and rare.
"""

from __future__ import annotations

from typing import Final

MOST_BYTES: Final = 2**25
"""Of thirty-two mebibytes some five thousand AppWrappers have their specs, or a hundred of the largest."""


class NewSpecs:
    """Specs by uid, at most `most` bytes of them; the first to come are kept, because their turn comes first."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most
        self._specs: dict[str, bytes] = {}

    def put(self, uid: str, spec: bytes) -> None:
        """Keep a spec, in place of the one before, if there is room."""
        self.drop(uid)
        if spec and len(spec) <= self._left:
            self._specs[uid] = spec
            self._left -= len(spec)

    def get(self, uid: str) -> bytes | None:
        """The spec; None if there was no room for it."""
        return self._specs.get(uid)

    def drop(self, uid: str) -> None:
        """Nobody will ask for it any more."""
        self._left += len(self._specs.pop(uid, b""))
