"""The calls of an API server that commands make, whichever client carries them out; it imports no client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dispatcher.kube.media_types import JSON, JSON_PATCH

Json = dict[str, Any]


class ApiCalls(Protocol):
    """The calls of an API server that the commands make; of a `ClusterClient`, or an `AsyncUserClient`."""

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> Json:
        """Read one object, or a page of a list."""

    async def check_ready(self) -> None:
        """Return if the API server is ready, else raise `Unavailable`."""

    async def create(self, path: str, body: Json) -> Json:
        """POST; raises `AlreadyExists` if the name is taken."""

    async def patch(self, path: str, body: Json | list[Json], content_type: str = JSON_PATCH) -> Json:
        """PATCH, by default a JSON patch."""

    async def delete(self, path: str, uid: str) -> Json:
        """DELETE with a uid precondition; raises `Conflict` if another object has the name."""
