"""Seals: the marks on created objects that only a dispatcher with this database can have made.

Anybody who may create objects in a namespace can write our labels, owner references and annotations. So an object that
is found in a cluster proves an attempt only by its seal: an HMAC over the AppWrapper's uid and the attempt, with a key
that is in the database alone. Whoever may read a sealed object can copy its seal, and proves nothing new by that: the
seal stands for an attempt that was granted.

Objects of MCAD or of a lost database have no seal of this key. They are believed for AppWrappers that are older than
the key, which the API server dates, if the database had no AppWrapper when the key was made. A database with a past
has the attempts of that past in its records: what they lack and no seal proves is not believed, however old it is.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dispatcher.values import shown_without

CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""How far the API server's clock may be ahead of the database's when the key is made. An AppWrapper that was created
less than this after the key counts as older than the key."""


@shown_without("key")
class Seals(Struct, frozen=True):
    """The key of a database, and the time `since` which every object that is created gets a seal.

    `since` is None if the database had AppWrappers then: none counts as older than the key.
    """

    key: bytes
    since: datetime | None

    def of(self, appwrapper: str, attempt: int) -> str:
        """The seal of one attempt of an AppWrapper (by uid)."""
        return hmac.new(self.key, f"{appwrapper}/{attempt}".encode(), hashlib.sha256).hexdigest()

    def vouch_for(self, appwrapper: str, attempt: int, seal: str, created_at: datetime) -> bool:
        """True if an object with this seal proves that attempt of an AppWrapper, which was created then."""
        if self.since is not None and created_at <= self.since + CLOCKS_DIFFER:
            return True
        return hmac.compare_digest(seal.encode(), self.of(appwrapper, attempt).encode())
