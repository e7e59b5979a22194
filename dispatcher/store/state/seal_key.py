"""The key of a database's seals: made once, by the first leader, and never changed (`core.model.seals`).

A backup has it, and so has a replica: a restored database knows its own seals. A lost database has lost its key too.
Then all objects have seals of another key, and every AppWrapper is older than the new one. A database of an earlier
release gets its key at the first start of this one: it has records of its attempts, so age proves nothing there.
"""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import text

from dispatcher.core.model.seals import Seals
from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease

_BYTES: Final = 32
"""As long as the digest: https://www.rfc-editor.org/rfc/rfc2104#section-3"""

_MAKE: Final = text(
    "UPDATE hub SET seal_key = :key, "
    "sealed_since = CASE WHEN EXISTS (SELECT FROM appwrapper) THEN NULL ELSE clock_timestamp() END "
    "WHERE seal_key IS NULL"
)
_READ: Final = text("SELECT seal_key, sealed_since FROM hub")


async def seals_of(database: Database, lease: Lease) -> Seals:
    """The seals of this database; makes the key if there is none. Safe to repeat."""
    async with database.fenced(lease.epoch, lease.holder) as connection:
        await connection.execute(_MAKE, {"key": secrets.token_bytes(_BYTES)})
        row = (await connection.execute(_READ)).one()
        return Seals(bytes(row.seal_key), row.sealed_since)
