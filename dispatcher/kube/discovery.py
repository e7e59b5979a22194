"""Finds the path of a kind: the API server is asked once per group and version.

Only kinds that exist are remembered. A missing kind is looked up again next time, so that a kind installed later is
found at once.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from dispatcher import errors
from dispatcher.api.syntax import LABEL, LONGEST_LABEL, most_similar
from dispatcher.kube import paths
from dispatcher.kube.answers import one_object
from dispatcher.kube.api_calls import ApiCalls

_KEPT: Final = frozenset({"create", "get", "delete"})
_PLURAL: Final = re.compile(LABEL)


class Kind(Struct, frozen=True):
    """A kind as this cluster serves it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    kept: bool = True
    """True if its objects can be read and deleted; false for reviews and for a pod's Binding, which are not stored."""

    def everywhere(self) -> str:
        """The path of its collection over all namespaces."""
        return paths.collection(self.api_version, self.plural)

    def path(self, namespace: str, name: str | None = None) -> str:
        """The path of its collection in `namespace`, or of the object `name` there.

        Raises `ImpossibleName` for an invalid namespace or name.
        """
        if self.namespaced:
            paths.segment(namespace)  # an empty one would mean all of them
        collection = paths.collection(self.api_version, self.plural, namespace if self.namespaced else "")
        return collection if name is None else f"{collection}/{paths.segment(name)}"


async def cluster_uid(client: ApiCalls) -> str:
    """The uid of the kube-system namespace, which identifies a cluster at any address."""
    path = "/api/v1/namespaces/kube-system"
    uid: str = one_object(await client.get(path), f"GET {path}")["metadata"]["uid"]
    return uid


class Discovery:
    """Finds kinds in one cluster."""

    def __init__(self, client: ApiCalls) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], Kind] = {}

    async def find(self, api_version: str, kind: str) -> Kind:
        """The kind; raises `NotFound`, with a message for users, if the cluster does not serve it."""
        found = self._kinds.get((api_version, kind))
        if found is None:
            await self.load(api_version)
            found = self._kinds.get((api_version, kind))
        if found is None:
            # An API server that has just started does not serve every CRD yet, so a missing kind counts once it is
            # ready.
            await self.check_ready()
            raise errors.NotFound(
                f'no matches for kind "{kind}" in version "{api_version}"{self._remedy(api_version, kind)}'
            )
        return found

    def _remedy(self, api_version: str, kind: str) -> str:
        """What to do about a kind that is not served: correct its spelling if a kind of that version is similar."""
        if similar := self.similar(api_version, kind):
            return f"; did you mean {similar}?"
        return ": install its CustomResourceDefinition, or correct apiVersion and kind"

    def similar(self, api_version: str, kind: str) -> str:
        """The found kind of that version that `kind` is most probably meant to be; empty without any."""
        return most_similar(kind, sorted(each for version, each in self._kinds if version == api_version))

    def forget(self, kind: Kind) -> None:
        """Look the kind up again next time: the API server answered that its path does not exist."""
        self._kinds.pop((kind.api_version, kind.kind), None)

    def serves(self, kind: tuple[str, str]) -> bool:
        """True if the kind, given by its apiVersion and name, was found before."""
        return kind in self._kinds

    async def check_ready(self) -> None:
        """Return if the API server is ready, and its answers about kinds therefore final; else raise `Unavailable`."""
        await self._client.check_ready()

    async def versions(self) -> frozenset[str] | None:
        """Every served group and version, as apiVersions; None if the API server gives no such list."""
        try:
            listed = await self._client.get("/apis")
        except (errors.NotFound, errors.Forbidden):
            return None
        try:
            groups = [version["groupVersion"] for group in listed["groups"] for version in group["versions"]]
        except (KeyError, TypeError) as error:
            raise errors.Unavailable("GET /apis: the answer makes no sense") from error
        return frozenset(["v1", *map(str, groups)])

    async def load(self, api_version: str) -> None:
        """Look up all kinds of a group and version with one request; one that is not served has no kinds."""
        try:
            listed = await self._client.get(paths.root(api_version))
        except errors.NotFound:
            return
        resources = listed.get("resources") if isinstance(listed, dict) else None
        for resource in resources if isinstance(resources, list) else ():
            found = _kind_of(api_version, resource)
            if found is not None:
                self._kinds[api_version, found.kind] = found


def _kind_of(api_version: str, resource: object) -> Kind | None:
    """A kind in an API server's list; None for a subresource, and for an entry that makes no sense."""
    match resource:
        case {"name": str(plural), "kind": str(kind), "namespaced": bool(namespaced), **rest}:
            if len(plural) > LONGEST_LABEL or not _PLURAL.fullmatch(plural):
                return None
            verbs = rest.get("verbs")
            named = set(filter(_is_text, verbs)) if isinstance(verbs, list) else _KEPT
            return Kind(api_version, kind, plural, namespaced=namespaced, kept=named >= _KEPT)
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)
