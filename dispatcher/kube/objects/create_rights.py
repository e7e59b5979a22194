"""The kinds that the dispatcher's own account may not create in one cluster, by namespace.

An API server answers with the same 403 if a policy or a quota refuses one object. So after a refusal it is asked
whether the account may create the kind there at all; texts of errors, which policies write, decide nothing. No user can
bring a denial about, and none costs more than one request in each round until the right is granted.
Source: https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dispatcher import errors, log
from dispatcher.api.annotations import UNKNOWN
from dispatcher.core.intake.authorization import Access
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.records.requirements import KindIn
from dispatcher.kube.api_calls import ApiCalls
from dispatcher.kube.discovery import Kind
from dispatcher.kube.questions import am_i_allowed

RECHECK_SECONDS: Final = 10.0
"""Period in which the API server is asked again about the denied kinds."""
MOST_ASKED: Final = 50
"""Denials asked about in one round, those first that were not asked about for longest."""
MOST_FAILED: Final = 3
"""Questions without an answer that end a round."""
MOST_REMEMBERED: Final = 1000
"""Denials that are remembered; of a forgotten one, the next creation is refused again."""

_log = log.get("create_rights")


class CreateRights:
    """Remembers each denied kind with its namespace until the right is granted."""

    def __init__(self, client: ApiCalls) -> None:
        self._client = client
        self._denied: BoundedDict[KindIn, Kind] = BoundedDict(MOST_REMEMBERED)

    @property
    def denied(self) -> frozenset[KindIn]:
        """The kinds that cannot be created, as far as creations were refused."""
        return frozenset(self._denied)

    async def is_denied(self, kind: Kind, namespace: str) -> bool:
        """True if the account may create no object of the kind there; a denial that is known is not asked about again.

        False if the account may not ask. Raises `Unavailable` and `Unauthorized`.
        """
        key = namespace, (kind.api_version, kind.kind)
        if key not in self._denied:
            if await self._may_create(kind, namespace) is not False:
                return False
            _log.warning("creation_forbidden", kind=kind.kind, version=kind.api_version, namespace=namespace)
        self._denied[key] = kind
        return True

    async def run(self, on_granted: Callable[[], None]) -> None:
        """Ask again about the denied kinds until cancelled; `on_granted` is called after a round with a grant."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if await self._forget_granted():
                on_granted()

    async def _forget_granted(self) -> bool:
        """True if a right was granted since the last round."""
        is_granted, failed = False, 0
        for key, kind in list(self._denied.items())[:MOST_ASKED]:
            try:
                may_create = await self._may_create(kind, key[0])
            except errors.ClusterError:  # an authorizer may fail about one kind alone
                may_create, failed = None, failed + 1
            if may_create:
                self._denied.pop(key, None)
                is_granted = True
            else:
                self._denied[key] = kind  # now the last one
            if failed == MOST_FAILED:
                break
        return is_granted

    async def _may_create(self, kind: Kind, namespace: str) -> bool | None:
        """None if the account may not ask. Raises `Unavailable` and `Unauthorized`."""
        group = kind.api_version.rpartition("/")[0]
        try:
            return await am_i_allowed(self._client, Access(UNKNOWN, namespace, group, kind.plural, "create"))
        except errors.Unauthorized:
            raise
        except errors.Refused:
            return None
