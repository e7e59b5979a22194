"""The hand-written parts of kubernetes_asyncio: credentials, TLS and connection pool, without its generated code.

`kubernetes_asyncio.client` imports a class for every kind and for every group of the API. These 850 modules take 0.15 s
of a start and 34 MB, and the dispatcher uses none of them. Its release 36.1, the newest, cannot leave them out. So this
module puts the packages in place without running their `__init__`, and then imports the parts by their own names. If
something has imported the whole library before, that is used.

In a process that imports this module first, `kubernetes_asyncio.client` has only the two classes.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from typing import Final

_PACKAGES: Final = (
    "kubernetes_asyncio",
    "kubernetes_asyncio.client",
    "kubernetes_asyncio.client.models",
)
"""The packages whose `__init__` imports generated code, each after the one that contains it."""


def _place(name: str) -> None:
    """Let the modules of a package be imported without what its `__init__` imports."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(name)
    sys.modules[name] = module_from_spec(spec)


if _PACKAGES[0] not in sys.modules:
    for _name in _PACKAGES:
        _place(_name)

# Each needs what is above it.
# ruff: noqa: E402
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration

sys.modules["kubernetes_asyncio.client"].__dict__.update(ApiClient=ApiClient, Configuration=Configuration)

from kubernetes_asyncio import config
from kubernetes_asyncio.config.config_exception import ConfigException

__all__ = ["ApiClient", "ConfigException", "Configuration", "config"]
