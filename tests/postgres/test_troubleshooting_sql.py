"""The queries in docs/troubleshooting.md run on the schema as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import text

from dispatcher.store.database import Database

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("query", QUERIES)
async def test_query_runs(database: Database, query: str) -> None:
    async with database.reading() as connection:
        found = await connection.execute(text(query))
        assert list(found.keys()) != []
