"""What a real API server says of a kind whose definition is deleted: it is ready, and does not list the kind."""

from __future__ import annotations

import pytest

from dispatcher.controller.scheduling.kind_watch import KindLocator
from dispatcher.core.queues.quota_subtrees import API_VERSIONS
from dispatcher.errors import NotFound, Throttled
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from testbed.plane import Plane
from tests.cluster.definitions import optional_kinds_of, wait_for


@pytest.mark.timeout(120)
async def test_kind_is_gone_once_its_definition_is_deleted_and_served_once_it_is_back(
    plane: Plane, client: ClusterClient
) -> None:
    gone: list[bool] = []
    locator = KindLocator(Discovery(client), API_VERSIONS, "QuotaSubtree", lambda: gone.append(True))

    async def is_served() -> bool:
        """As a reflector does: locate, list, and look again after a 404."""
        try:
            await client.get(await locator.locate())
        except NotFound:
            locator.look_again()
            return False
        except Throttled:  # while the storage of a definition begins
            return False
        return True

    async def is_gone() -> bool:
        return not await is_served() and locator.is_gone

    async with optional_kinds_of(plane.kubeconfig):
        await wait_for(is_served)
    await wait_for(is_gone)
    assert gone
    before = len(gone)
    assert await is_gone()
    assert len(gone) == before, "it is called when the kind ends, and not at each look"
    async with optional_kinds_of(plane.kubeconfig):
        await wait_for(is_served)
        assert not locator.is_gone
