"""The hand-written parts of kubernetes_asyncio: credentials, TLS and connection pool, without its generated code.

`kubernetes_asyncio.client` imports a class for every kind and for every group of the API. These 850 modules take 0.15 s
of a start and 34 MB, and the dispatcher uses none of them. Its release 36.1, the newest, cannot leave them out. So this
module puts the packages in place without running their `__init__`, and then imports the parts by their own names. If
something has imported the whole library before, that is used.

In a process that imports this module first, `kubernetes_asyncio.client` has only the two classes. urllib3 is imported
once it is used: the library needs it only for passwords, which it sends to no API server.
"""

from __future__ import annotations

import sys
from typing import Final

from dispatcher.packages import defer, place

_PACKAGES: Final = (
    "kubernetes_asyncio",
    "kubernetes_asyncio.client",
    "kubernetes_asyncio.client.models",
)
"""The packages whose `__init__` imports generated code, each after the one that contains it."""

if _PACKAGES[0] not in sys.modules:
    for _name in _PACKAGES:
        place(_name)
defer("urllib3")

# Each needs what is above it.
# ruff: noqa: E402
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration

sys.modules["kubernetes_asyncio.client"].__dict__.update(ApiClient=ApiClient, Configuration=Configuration)

from kubernetes_asyncio import config
from kubernetes_asyncio.config.config_exception import ConfigException

__all__ = ["ApiClient", "ConfigException", "Configuration", "config"]
