"""AppWrappers as the verbs of `kubectl aw` see them: found by name, changed under the uid that was read, watched.

Every write is made with the caller's own rights, and goes through the hub's admission.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

import orjson
from msgspec import Struct

from dispatcher import errors
from dispatcher.api.names import PLURALS
from dispatcher.cli.people.appwrapper_names import unknown_name
from dispatcher.cli.user_hub import VERSIONS
from dispatcher.kube import paths
from dispatcher.kube.api_calls import MERGE_PATCH
from dispatcher.kube.user_client import UserClient

Json = dict[str, Any]

LONGEST_WATCH: Final = 300
"""Seconds after which a watch begins anew: a proxy may cut a silent one."""
PAUSE_SECONDS: Final = 1.0
"""Seconds before a hub that did not answer is asked again."""


class TimeIsUp(errors.CommandFailed):
    """The AppWrapper did not reach the expected state in time; the exit code is that of timeout(1)."""

    exit_code = 124


class Found(Struct, frozen=True):
    """An AppWrapper that was read, and its path."""

    path: str
    raw: Json

    @property
    def key(self) -> str:
        """Namespace and name in one word."""
        return f"{self.raw['metadata']['namespace']}/{self.raw['metadata']['name']}"


class AppWrapperClient:
    """Finds and changes AppWrappers of both groups; `is_dry` sends every write as a dry run."""

    def __init__(self, client: UserClient, *, is_dry: bool = False) -> None:
        self._client = client
        self._query = {"dryRun": "All"} if is_dry else {}

    def find(self, namespace: str, name: str) -> Found:
        """The AppWrapper of that name; raises `CommandFailed` if there is none."""
        for version in VERSIONS:
            path = _path(version, namespace, name)
            try:
                return Found(path, self._client.get(path))
            except errors.NotFound:
                continue
        remedy = f"see those there are with kubectl get aw -n {namespace}, or name another namespace"
        raise errors.CommandFailed(unknown_name(name, namespace, self._names(namespace), f": {remedy}"))

    def _names(self, namespace: str) -> list[str]:
        """The names in a namespace, as far as they may be listed."""
        found: list[str] = []
        for version in VERSIONS:
            with contextlib.suppress(errors.ClusterError):
                collection = paths.collection(version, PLURALS[version.partition("/")[0]], namespace)
                found += (each["metadata"]["name"] for each in self._client.items(collection))
        return found

    def change(self, found: Found, spec: Json) -> Json:
        """Merge into the spec; raises `Conflict` if the AppWrapper was deleted and submitted anew."""
        body = {"metadata": {"uid": found.raw["metadata"]["uid"]}, "spec": spec}
        return self._client.patch(found.path, body, MERGE_PATCH, self._query)

    def delete(self, found: Found) -> None:
        """Delete the AppWrapper that was found."""
        self._client.delete(found.path, found.raw["metadata"]["uid"], is_dry=bool(self._query))

    def submit(self, namespace: str, raw: Json) -> Found:
        """Create an AppWrapper in a namespace; raises `AlreadyExists`."""
        version = str(raw["apiVersion"])
        collection = paths.collection(version, PLURALS[version.partition("/")[0]], namespace)
        body = {**raw, "metadata": {**(raw.get("metadata") or {}), "namespace": namespace}}
        created = self._client.create(collection, body, {"fieldValidation": "Strict", **self._query})
        return Found(f"{collection}/{paths.segment(created['metadata']['name'])}", created)

    def states(self, found: Found, ends: float | None) -> Iterator[Json]:
        """The AppWrapper as it is and after each change, until it is deleted.

        Raises `TimeIsUp` at the monotonic time `ends`.
        """
        uid = found.raw["metadata"]["uid"]
        while True:
            try:
                for raw in self._until_cut(found, ends):
                    if raw is None or raw["metadata"]["uid"] != uid:
                        return
                    yield raw
            except (errors.Unavailable, errors.Expired):
                time.sleep(max(0.0, _left(ends, PAUSE_SECONDS)))
            if _left(ends, 1) <= 0:
                raise TimeIsUp("")

    def _until_cut(self, found: Found, ends: float | None) -> Iterator[Json | None]:
        """The AppWrapper now and after each change, until the server ends the watch; None once it is deleted."""
        collection, _, name = found.path.rpartition("/")
        query = {"fieldSelector": f"metadata.name={name}"}
        listed = self._client.get(collection, query)
        if not listed.get("items"):
            yield None
            return
        yield listed["items"][0]
        seconds = _left(ends, LONGEST_WATCH)
        watched = {
            **query,
            "watch": "1",
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        for line in self._client.lines(collection, watched, max(0.1, seconds)):
            event = orjson.loads(line)
            match event["type"]:
                case "ERROR":
                    return
                case "DELETED":
                    yield None
                case _:
                    yield event["object"]


def _left(ends: float | None, most: float) -> float:
    """The seconds that are left, at most `most`."""
    return most if ends is None else min(most, ends - time.monotonic())


def _path(version: str, namespace: str, name: str) -> str:
    return paths.item(version, PLURALS[version.partition("/")[0]], namespace, name)
