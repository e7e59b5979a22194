"""Writes the status of MemberClusters: each only if it differs from the last written one."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher import errors, log
from dispatcher.api.names import MEMBERS_PATH
from dispatcher.controller.members.member import Member
from dispatcher.core.model.potential import Trust
from dispatcher.core.status.member_status import status_of
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient

_log = log.get("fleet")


class MemberStatusWriter:
    """Writes one status at a time; an error is logged, and the next round writes it.

    `count_running` is the number of gangs in a cluster, and `trust_in` the trust in its potential nodes.
    """

    def __init__(
        self, hub: ClusterClient, count_running: Callable[[str], int], trust_in: Callable[[str], Trust]
    ) -> None:
        self._hub = hub
        self._count_running = count_running
        self._trust_in = trust_in

    async def write(self, member: Member) -> None:
        """Write the status of a member if it has changed."""
        try:
            await self._write(member)
        except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
            log.internal_error("fleet", error, cluster=member.name)

    async def _write(self, member: Member) -> None:
        status = status_of(
            member.status_values(self._count_running(member.name), self._trust_in(member.name))
        )
        if status == member.written_status:
            return
        path = f"{MEMBERS_PATH}/{paths.segment(member.name)}/status"
        test = {"op": "test", "path": "/metadata/uid", "value": member.declared.uid}
        try:
            await self._hub.patch(path, [test, {"op": "add", "path": "/status", "value": status}])
            member.written_status = status
        except errors.ClusterError as error:
            _log.info("member_status_not_written", cluster=member.name, error=str(error))
