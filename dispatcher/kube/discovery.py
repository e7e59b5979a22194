"""Finds the path of a kind: the API server is asked once per group and version.

Only kinds that exist are remembered, until the API server shows that one is gone: its path is not found any more
(`forget`), or a later list of its group and version lacks it (`load`). A missing kind is looked up again next time, so
that a kind installed later is found at once. No answer changes nothing: a kind is then as known as before.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from dispatcher import errors
from dispatcher.api.syntax import LABEL, LONGEST_LABEL, most_similar
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.kube import paths
from dispatcher.kube.api_calls import ApiCalls, one_object

_KEPT: Final = frozenset({"get", "delete"})
_ALL_VERBS: Final = frozenset({"create", *_KEPT})
_PLURAL: Final = re.compile(LABEL)

MOST_UNANSWERED: Final = 1000
"""Groups and versions whose failure is remembered; any user can name more."""

INSTALL: Final = "install its CustomResourceDefinition, or correct apiVersion and kind"
"""The remedy for a kind that is not served."""


class Kind(Struct, frozen=True):
    """A kind as this cluster serves it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    kept: bool = True
    """True if its objects can be read and deleted; false for reviews and for a pod's Binding, which are not stored."""
    is_going: bool = False
    """True if its objects can be read and deleted, but not created: its definition is being removed."""

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
        self._unanswered: BoundedDict[str, str] = BoundedDict(MOST_UNANSWERED)
        self.changes = 0
        """How many answers have come; what was derived from the known kinds holds while this is the same."""

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
            raise self.not_served(api_version, kind)
        return found

    async def find_stored(self, api_version: str, kind: str) -> Kind:
        """The kind of an object that exists: in another version of its group if its own is not served any more.

        An API server gives an object in each served version. Raises `NotFound` if no version of the group has the kind.
        Costs one request for the group and one for each of its versions, only while the own version is not served.
        """
        try:
            return await self.find(api_version, kind)
        except errors.NotFound:
            for other in await self._other_versions(api_version):
                found = self._kinds.get((other, kind)) or await self.loaded(other, kind)
                if found is not None:
                    return found
            raise

    def known(self, api_version: str, kind: str) -> Kind | None:
        """The kind if it was found before; asks nobody."""
        return self._kinds.get((api_version, kind))

    async def loaded(self, api_version: str, kind: str) -> Kind | None:
        """The kind by a new list of its group and version; None if that lacks it. Raises `Unavailable`."""
        await self.load(api_version)
        return self._kinds.get((api_version, kind))

    async def _other_versions(self, api_version: str) -> list[str]:
        """The other served versions of a group, as apiVersions, the preferred one first."""
        group, is_named, _ = api_version.rpartition("/")
        if not is_named:
            return []
        try:
            listed = await self._client.get(f"/apis/{paths.segment(group)}")
        except errors.NotFound:
            return []
        try:
            versions = [str(each["groupVersion"]) for each in listed["versions"]]
        except (KeyError, TypeError) as error:
            raise errors.Unavailable(f"GET /apis/{group}: the answer makes no sense") from error
        return [each for each in versions if each != api_version and each.rpartition("/")[0] == group]

    def not_served(self, api_version: str, kind: str) -> errors.NotFound:
        """The error for a kind that is not served, with the remedy."""
        hint = self.hint((api_version, kind))
        remedy = f"; {hint}" if hint else f": {INSTALL}"
        return errors.NotFound(f'no matches for kind "{kind}" in version "{api_version}"{remedy}')

    def hint(self, kind: tuple[str, str]) -> str:
        """What is special about a kind that is not served: no answer, a spelling, another version; else empty.

        Compares the kind with at most `MOST_COMPARED` others.
        """
        api_version, name = kind
        if kind in self._kinds:
            return "its definition is being removed" if self._kinds[kind].is_going else ""
        if unanswered := self._unanswered.get(api_version):
            return f"the API server does not say which kinds {api_version} has: {unanswered}"
        if similar := self.similar(api_version, name):
            return f"did you mean {similar}?"
        group = api_version.rpartition("/")[0]
        others = sorted(
            version for version, each in self._kinds if each == name and version.rpartition("/")[0] == group
        )
        return f"it is served as {', '.join(others)}" if others else ""

    def similar(self, api_version: str, kind: str) -> str:
        """The found kind of that version that `kind` is most probably meant to be; empty without any."""
        return most_similar(kind, sorted(each for version, each in self._kinds if version == api_version))

    def forget(self, kind: Kind) -> None:
        """Look the kind up again next time: the API server answered that its path does not exist."""
        self._kinds.pop((kind.api_version, kind.kind), None)

    def serves(self, kind: tuple[str, str]) -> bool:
        """True if the kind, given by its apiVersion and name, was found before, and is not being removed."""
        found = self._kinds.get(kind)
        return found is not None and not found.is_going

    async def serves_now(self, kind: tuple[str, str]) -> bool:
        """Like `serves`, by a new answer of the API server. Raises `Unavailable` without one."""
        await self.load(kind[0])
        if not self.serves(kind):
            await self.check_ready()
        return self.serves(kind)

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
        """Look up all kinds of a group and version with one request; one that is not served has no kinds.

        Forgets the kinds that a list lacks. Raises `Unavailable` without an answer, and while the API server is not
        ready if known kinds seem to be gone.
        """
        try:
            listed = await self._client.get(paths.root(api_version))
        except errors.NotFound:
            listed = {"resources": []}
        except errors.Unavailable as error:
            self._unanswered[api_version] = str(error)
            self.changes += 1
            raise
        resources = listed.get("resources", "none") if isinstance(listed, dict) else "none"
        found = [_kind_of(api_version, each) for each in resources] if isinstance(resources, list) else []
        served = {each.kind: each for each in found if each is not None}
        if resources is None or isinstance(resources, list):
            await self._drop_all_but(api_version, served)
        self._kinds |= {(api_version, kind): each for kind, each in served.items()}
        self._unanswered.pop(api_version, None)
        self.changes += 1

    async def _drop_all_but(self, api_version: str, served: Collection[str]) -> None:
        """Forget the known kinds of a group and version that its list lacks, once the API server is ready."""
        gone = [key for key in self._kinds if key[0] == api_version and key[1] not in served]
        if gone:
            await self.check_ready()
        for key in gone:
            self._kinds.pop(key, None)


def _kind_of(api_version: str, resource: object) -> Kind | None:
    """A kind in an API server's list; None for a subresource, and for an entry that makes no sense."""
    match resource:
        case {"name": str(plural), "kind": str(kind), "namespaced": bool(namespaced), **rest}:
            if len(plural) > LONGEST_LABEL or not _PLURAL.fullmatch(plural):
                return None
            verbs = rest.get("verbs")
            named = set(filter(_is_text, verbs)) if isinstance(verbs, list) else _ALL_VERBS
            kept = named >= _KEPT
            is_going = kept and "create" not in named
            return Kind(api_version, kind, plural, namespaced=namespaced, kept=kept, is_going=is_going)
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)
