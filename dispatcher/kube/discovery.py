"""Which path a kind is served at: asked of the API server once per group and version, and remembered.

Only what exists is remembered. A kind that is missing is asked for again next time, so that one installed
later is found at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dispatcher import errors
from dispatcher.api.syntax import LABEL, LONGEST_LABEL
from dispatcher.kube import paths
from dispatcher.kube.answers import one_object
from dispatcher.kube.client import ClusterClient

_KEPT: Final = frozenset({"create", "get", "delete"})
_PLURAL: Final = re.compile(LABEL)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind as this cluster serves it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    kept: bool = True
    """Its objects can be read and deleted. The answer to a review, or a pod's Binding, is not kept."""

    def everywhere(self) -> str:
        """The path of its collection over all namespaces."""
        return paths.collection(self.api_version, self.plural)

    def path(self, namespace: str, name: str | None = None) -> str:
        """The path of its collection in `namespace`, or of the object `name` there.

        Raises `ImpossibleName` where there can be no such namespace or object.
        """
        if self.namespaced:
            paths.segment(namespace)  # an empty one would mean all of them
        collection = paths.collection(self.api_version, self.plural, namespace if self.namespaced else "")
        return collection if name is None else f"{collection}/{paths.segment(name)}"


async def cluster_uid(client: ClusterClient) -> str:
    """What tells one cluster from another, whatever its address: the uid of its kube-system namespace."""
    path = "/api/v1/namespaces/kube-system"
    uid: str = one_object(await client.get(path), f"GET {path}")["metadata"]["uid"]
    return uid


class Discovery:
    """Finds kinds in one cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], Kind] = {}

    async def find(self, api_version: str, kind: str) -> Kind:
        """The kind, or `NotFound` with a sentence for users if the cluster does not serve it."""
        known = self._kinds.get((api_version, kind))
        if known is None:
            await self.load(api_version)
            known = self._kinds.get((api_version, kind))
        if known is None:
            # An API server that has just started does not serve every CRD yet: its "no" counts once it is ready.
            await self.check_ready()
            raise errors.NotFound(
                f'no matches for kind "{kind}" in version "{api_version}": '
                "install its CustomResourceDefinition, or correct apiVersion and kind"
            )
        return known

    def forget(self, kind: Kind) -> None:
        """Ask for it anew next time: the API server has said that it does not know its path."""
        self._kinds.pop((kind.api_version, kind.kind), None)

    def serves(self, kind: tuple[str, str]) -> bool:
        """True if it is known that the cluster serves a kind, given by its apiVersion and name."""
        return kind in self._kinds

    async def check_ready(self) -> None:
        """Return if the API server is ready, so that what it does not serve is not there; else raise `Unavailable`."""
        await self._client.check_ready()

    async def versions(self) -> frozenset[str] | None:
        """Every group and version that is served, as apiVersions; None if the API server gives no such list."""
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
        """Find out every kind of a group and version by one request; one that is not served has none."""
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
    """A kind as an API server lists it; None of a subresource, and of what makes no sense: any server may be asked."""
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
