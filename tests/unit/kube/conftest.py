"""These tests talk to a scripted API server on the loopback, in virtual time."""

from tests.unit.scripted import client, no_proxies, pytest_asyncio_loop_factories, server

__all__ = ["client", "no_proxies", "pytest_asyncio_loop_factories", "server"]
