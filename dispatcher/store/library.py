"""The engine of SQLAlchemy for asyncio, without its object mapper, which takes a twentieth of a start.

The package `sqlalchemy.ext.asyncio` imports the mapper for sessions; the dispatcher uses connections only.
"""

from __future__ import annotations

from dispatcher.packages import defer

defer("sqlalchemy.ext.asyncio")

# Needs what is above it.
# ruff: noqa: E402
from sqlalchemy.ext.asyncio.engine import AsyncConnection, AsyncEngine, create_async_engine

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]
