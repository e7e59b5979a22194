"""Which MemberClusters are declared, as far as known: a list that cannot be read is not an empty list.

A MemberCluster that was there counts until complete lists have lacked it for some minutes (`absence`): while the last
one is replaced, the hub does not take gangs in its place.

The API server answers with a list, refuses (403, or 404 without the CRD), or does not answer. A refusal means that
there are no members only while the database has none, as on a hub that never had members. Otherwise the members are
unknown: nothing is dispatched, adopted or given up until they are listed. After a first list, a later refusal leaves
the members known. In both cases `check` raises after a bound, because another replica may have better luck.

A database that is new, or older than the first member, has no members either. So for an AppWrapper with our finalizer,
which says that a member may have objects of it, a 403 is not enough: such an AppWrapper requires `is_certain`.

`MemberStatusWriter` writes the status of MemberClusters: each only if it differs from the last written one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from dispatcher import errors, log
from dispatcher.api.names import MEMBERS_PATH
from dispatcher.controller.members.member import Member
from dispatcher.controller.scheduling.absence import LASTS_SECONDS, Absences
from dispatcher.core.model.clusters.potential import Trust
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.core.status.clusters import status_of
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.reflector import Reflector

MEMBERS_UNKNOWN: Final = Closed(
    pending_reasons.MEMBERS_UNKNOWN,
    "the MemberClusters cannot be listed, and gangs may run on members: nothing is dispatched until they can; "
    "the dispatcher's readiness probe says what keeps it from listing them",
)
"""The message does not contain the error: a new message would be a status write for each queued AppWrapper."""

MEMBER_REMOVED: Final = Closed(
    pending_reasons.REMOVED,
    f"its MemberCluster was removed, and counts as gone once it has been missing for {LASTS_SECONDS / 60:g} minutes; "
    "if no member is left then, the hub takes gangs. To have the hub take gangs now: dispatcher clusters add hub",
)

MOST_NAMED: Final = 20
"""Absent members that are logged after one change."""

_log = log.get("membership")


class MembersUnknown(errors.Unavailable):
    """The MemberClusters could not be listed within the bound."""


class Membership:
    """Combines the watch of MemberClusters with the members in the database. `seconds` is a monotonic clock."""

    def __init__(self, declared: Reflector[Any], seconds: Callable[[], float]) -> None:
        self._declared = declared
        self._seconds = seconds
        self._absences = Absences(seconds)
        self._recorded: frozenset[str] = frozenset()
        self._outdated_error: errors.ClusterError | None = None
        self._problem_since: float | None = None
        self._was_refused = False

    def load(self, recorded: Collection[str], seen: Collection[str]) -> None:
        """Load the members in the database.

        `recorded` were declared at the last record, or have gangs of ours. `seen` were declared, and an earlier leader
        did not see their absence last.
        """
        self._recorded = frozenset(recorded) | frozenset(seen)
        self._absences.load(seen)

    def note_declared(self) -> bool:
        """Note the members that are declared now; true if others are absent than before. To be called periodically."""
        changed = self._absences.note(self._names(), lambda _name: self._declared.is_current)
        lingering = sorted(self._absences.lingering)
        if changed and lingering:
            _log.warning(
                "members_absent",
                clusters=lingering[:MOST_NAMED],
                count=len(lingering),
                effect="the hub takes no gang in their place until complete lists have lacked them for "
                f"{LASTS_SECONDS:g} s",
            )
        return changed

    def note_listed(self) -> None:
        """Note a complete list: it ends any earlier problem."""
        self._outdated_error, self._problem_since = self._declared.last_error, None

    @property
    def recorded(self) -> frozenset[str]:
        """The members in the database."""
        return self._recorded

    @property
    def seen(self) -> frozenset[str]:
        """The members that are declared or absent: those that a later leader has to know."""
        return self._absences.seen

    @property
    def absent(self) -> frozenset[str]:
        """The members that are not declared any more, and not surely gone."""
        return self._absences.seen - self._names()

    @property
    def is_known(self) -> bool:
        """True once the declared members are known."""
        return self.is_listed or (not self._recorded and self._is_refused)

    @property
    def is_listed(self) -> bool:
        """True once a complete list was read."""
        return self._declared.synced.is_set()

    @property
    def is_undeclarable(self) -> bool:
        """True if there can be no member: the CRD is not installed, and the database has none."""
        return self.is_known and not self.is_listed and self._declared.answered.is_set()

    @property
    def is_certain(self) -> bool:
        """True once the API server has said which members are declared; a refusal (403) does not say so."""
        return self.is_listed or self.is_undeclarable

    @property
    def problem(self) -> str:
        """The problem, in a sentence; empty while the members are known and current."""
        error = self._error
        if not self.is_known:
            last_error = error or "the API server has not answered yet"
            recorded = f" (the database knows {_named(self._recorded)})" if self._recorded else ""
            return f"the MemberClusters cannot be listed: {last_error}{recorded}; until they can, nothing is dispatched"
        if (self._declared.items or self._absences.seen) and isinstance(
            error, (errors.Forbidden, errors.NotFound)
        ):
            return f"the MemberClusters cannot be listed or watched any more: {error}; changes of them are missed"
        return ""

    def note_refusal(self) -> None:
        """Note a current refusal: without members, the members stay known when the API server no longer answers."""
        self._was_refused = self._is_refused

    def check(self, bound: float) -> None:
        """Raise `MembersUnknown` once there has been a problem for `bound` seconds; to be called periodically."""
        self.note_refusal()
        problem = self.problem
        if not problem:
            self._problem_since = None
            return
        if self._problem_since is None:
            self._problem_since = self._seconds()
        if self._seconds() - self._problem_since >= bound:
            raise MembersUnknown(problem)

    def _names(self) -> frozenset[str]:
        return frozenset(each.name for each in self._declared.items.values())

    @property
    def _is_refused(self) -> bool:
        return self._was_refused or self._declared.answered.is_set() or self._declared.is_forbidden

    @property
    def _error(self) -> errors.ClusterError | None:
        """The current error of the watch; None for an error that is older than the last list."""
        last_error = self._declared.last_error
        return None if last_error is self._outdated_error else last_error


def _named(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


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
