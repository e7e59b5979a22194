"""What the API server has and says, as the tests of the controller script it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web

from dispatcher.core.kinds.manifest import build
from tests.builders import make_owner, make_template, make_wrapped
from tests.fakes import FakeApiServer, answer, refusal

Json = dict[str, Any]

APPWRAPPERS = "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers"
PODS = "/api/v1/namespaces/default/pods"
ALL_PODS = "/api/v1/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
MISSING = refusal(404, "NotFound")


def job(name: str = "train") -> Json:
    """A Job of one pod, as a user writes it under generictemplate."""
    template = {"spec": make_template()["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template},
    }


def secret(name: str = "token") -> Json:
    """A Secret, as a user writes it."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}


def true(condition: str) -> Json:
    """The status of an object of which one condition is true."""
    return {"conditions": [{"type": condition, "status": "True"}]}


def pods(*raw: Json) -> Json:
    """A list of pods as the API server has it."""
    return {"metadata": {"resourceVersion": "1"}, "items": list(raw)}


def made(template: Json, index: int = 0, status: Json | None = None) -> Json:
    """A wrapped object as the API server has it."""
    built = build(make_wrapped(template, index), make_owner())
    uid = f"uid-of-{template['metadata']['name']}"
    return {
        **built,
        "metadata": {**built["metadata"], "uid": uid, "resourceVersion": "1"},
        "status": status or {},
    }


BOOKMARK_SECONDS = 60
"""The pause after which an API server sends a bookmark in a watch in which nothing changes."""


class Watched:
    """The objects of one kind that the API server has: found by name, listed, and told of as they change."""

    def __init__(self, server: FakeApiServer, prefix: str, plural: str) -> None:
        self._server = server
        self._path = f"{prefix}/namespaces/default/{plural}"
        self._raws: dict[str, Json] = {}
        self._version = 1
        self._events: asyncio.Queue[Json] = asyncio.Queue()
        server.on("GET", f"{prefix}/{plural}", self._answer)

    def has(self, raw: Json) -> None:
        """From now on it has this object, or has it so."""
        self._version += 1
        name = raw["metadata"]["name"]
        raw = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self._version)}}
        type_ = "MODIFIED" if name in self._raws else "ADDED"
        self._raws[name] = raw
        self._server.on("GET", f"{self._path}/{name}", answer(raw))
        self._server.on("DELETE", f"{self._path}/{name}", answer({}))
        self._events.put_nowait({"type": type_, "object": raw})

    def loses(self, name: str) -> None:
        """From now on it has it no longer."""
        self._version += 1
        self._server.on("GET", f"{self._path}/{name}", MISSING)
        self._events.put_nowait({"type": "DELETED", "object": self._raws.pop(name)})

    def deletions(self) -> list[str]:
        """The names of those that were asked to be deleted, in order."""
        asked = [each.path.rpartition("/") for each in self._server.requests("DELETE")]
        return [name for path, _, name in asked if path == self._path]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._stream(request)
        while not self._events.empty():
            self._events.get_nowait()
        page = {"metadata": {"resourceVersion": str(self._version)}, "items": list(self._raws.values())}
        return await answer(page)(request)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            try:
                event = await asyncio.wait_for(self._events.get(), BOOKMARK_SECONDS)
            except TimeoutError:
                bookmark = {"metadata": {"resourceVersion": str(self._version)}}
                event = {"type": "BOOKMARK", "object": bookmark}
            await response.write(orjson.dumps(event) + b"\n")
