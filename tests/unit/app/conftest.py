"""These tests run the composition root in virtual time, against a scripted API server and without a database."""

from __future__ import annotations

from tests.unit.scripted import client, no_proxies, pytest_asyncio_loop_factories, server

__all__ = ["client", "no_proxies", "pytest_asyncio_loop_factories", "server"]
