"""Checks by access reviews whether the author of an AppWrapper may create the wrapped objects.

The reviews run beside intake: an AppWrapper without an answer is taken in once there is one, and delays no other. Two
AppWrappers of a namespace are reviewed at a time. An answer is valid for some seconds. A review that fails is repeated,
and the AppWrapper is not dispatched meanwhile.

A right is to a resource, and only a cluster that serves a kind says which resource that is. So an AppWrapper of a kind
that no cluster serves waits for it outside the queue, and its status says so.

The rights at intake count, as with an admission policy the rights at creation count: later changes do not end a gang,
as they do not end the pods of a Deployment.

`ServedKinds` finds a kind in the clusters that gangs may run in, for questions about it while it may not be installed.
Any user can invent kinds, and each question about one is repeated. So a cluster is asked once in `SECONDS` which groups
and versions it serves, and once about each of these, whatever was invented.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from dispatcher import errors, log
from dispatcher.api.annotations import Submitter
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.intake.authorization import Access, WrappedKind, check_known, wrapped_kinds
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.kube.discovery import INSTALL, Kind

ANSWER_SECONDS: Final = 10.0
"""How long an answer is valid: a granted or revoked right counts after that at the latest."""

MOST_ANSWERS: Final = 10_000
AT_ONCE: Final = 16
"""How many AppWrappers are reviewed at the same time, each by one request at a time."""

AT_ONCE_IN_A_NAMESPACE: Final = 2

LONGEST_UNSERVED_SECONDS: Final = 60.0
"""Longest pause between two looks for a kind that is not served; they begin with `ANSWER_SECONDS` and double."""

POLICY_SECONDS: Final = 600.0
"""Seconds between two checks that the admission policy is installed."""

_log = log.get("author_check")


class _Question(NamedTuple):
    """May this submitter create this kind in this namespace? An answer holds for one version of the kind."""

    submitter: Submitter
    namespace: str
    api_version: str
    kind: str


class _Answer(NamedTuple):
    """`problem` is empty if the author may create the kind; `until` is in seconds of the monotonic clock."""

    problem: str
    until: float


class _AccessRequest(NamedTuple):
    submitter: Submitter
    namespace: str
    kinds: tuple[WrappedKind, ...]


class _Unserved(NamedTuple):
    """An AppWrapper waits for a kind, for which was looked `looks` times."""

    message: str
    looks: int


class AuthorCheck:
    """Asks what authors may create; calls `answered` with the uid of each AppWrapper that has an answer.

    `is_allowed` asks the API server of the hub. `is_complete` is true if every cluster can be asked which kinds it
    serves; `is_wanted` is true while the AppWrapper of a uid exists.
    """

    def __init__(
        self,
        is_allowed: Callable[[Access], Awaitable[bool]],
        clusters: Mapping[str, WatchedCluster],
        is_complete: Callable[[], bool],
        is_wanted: Callable[[str], bool],
        answered: Callable[[str], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._is_allowed = is_allowed
        self._kinds = ServedKinds(clusters, is_complete, monotonic)
        self._is_wanted = is_wanted
        self._answered = answered
        self._monotonic = monotonic
        self._waiting: dict[str, _AccessRequest] = {}
        self._unserved: dict[str, _Unserved] = {}
        self._answers: BoundedDict[_Question, _Answer] = BoundedDict(MOST_ANSWERS)
        self._queue = WorkQueue(monotonic, self._namespace_of, AT_ONCE_IN_A_NAMESPACE)

    def may_wrap(self, uid: str, submitter: Submitter, namespace: str, spec: AppWrapperSpec) -> bool:
        """True if the author may create all wrapped objects, False while a review runs; raises `SpecError` if not."""
        kinds = wrapped_kinds(spec)
        check_known(submitter)
        asked = _AccessRequest(submitter, namespace, kinds)
        if self._waiting.get(uid, asked) != asked:
            self._forget(uid)  # its author has corrected a kind that is not served
        is_known = True
        for kind in kinds:
            answer = self._answer_to(_Question(submitter, namespace, kind.api_version, kind.kind))
            if answer is None:
                is_known = False
            elif answer.problem:
                remedy = "Ask an administrator for that right, then submit the AppWrapper anew"
                raise SpecError(kind.path, answer.problem, remedy)
        if not is_known and uid not in self._waiting:
            self._waiting[uid] = asked
            self._queue.add(uid)
        return is_known

    def unserved_of(self, uid: str) -> str:
        """Why an AppWrapper waits for a kind, in a sentence; empty if it does not."""
        found = self._unserved.get(uid)
        return found.message if found else ""

    @property
    def waiting(self) -> int:
        """How many AppWrappers are being reviewed."""
        return len(self._waiting)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            uid = await self._queue.get()
            try:
                await self._ask_about(uid)
            except errors.NotFound as error:
                self._wait_for_kind(uid, str(error))
            except errors.ClusterError as error:
                pause = self._queue.add_failed(uid)
                _log.warning("author_check_failed", uid=uid, error=str(error), pause=round(pause, 1))
            except Exception:  # noqa: BLE001  # the loop's edge: one AppWrapper must not end the others
                pause = self._queue.add_failed(uid)
                log.count_internal_error("author_check")
                _log.exception("author_check_failed", uid=uid, pause=round(pause, 1))
            else:
                self._queue.succeed(uid)
            finally:
                self._queue.done(uid)

    async def _ask_about(self, uid: str) -> None:
        asked = self._waiting.get(uid)
        if asked is None:
            self._forget(uid)
            return
        if self._is_wanted(uid):
            for kind in asked.kinds:
                if await self._problem(asked, kind):
                    break
        if self._waiting.get(uid) is asked:
            self._forget(uid)
        self._answered(uid)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._unserved.pop(uid, None)

    def _wait_for_kind(self, uid: str, message: str) -> None:
        """Look for the kind again after a pause that grows; wake the AppWrapper at the first and each other message."""
        known = self._unserved.get(uid)
        looks = known.looks if known else 0
        self._unserved[uid] = _Unserved(message, looks + 1)
        self._queue.add_later(uid, min(LONGEST_UNSERVED_SECONDS, ANSWER_SECONDS * 2.0 ** min(looks, 10)))
        if known is None or known.message != message:
            _log.info("kind_not_served", uid=uid, error=message)
            self._answered(uid)

    async def _problem(self, asked: _AccessRequest, kind: WrappedKind) -> str:
        """Why the author may not wrap this kind; empty if the author may. Raises `NotFound` if it is not served."""
        question = _Question(asked.submitter, asked.namespace, kind.api_version, kind.kind)
        known = self._answer_to(question)
        if known is not None:
            return known.problem
        problem = await self._ask(asked, kind)
        self._answers[question] = _Answer(problem, self._monotonic() + ANSWER_SECONDS)
        return problem

    async def _ask(self, asked: _AccessRequest, kind: WrappedKind) -> str:
        found = await self._kinds.find(kind.api_version, kind.kind)
        namespace = asked.namespace if found.namespaced else ""
        access = Access(asked.submitter, namespace, kind.group, found.plural, kind.verb)
        return "" if await self._is_allowed(access) else access.denial()

    def _answer_to(self, question: _Question) -> _Answer | None:
        answer = self._answers.get(question)
        return answer if answer is not None and answer.until > self._monotonic() else None

    def _namespace_of(self, uid: str) -> str:
        asked = self._waiting.get(uid)
        return asked.namespace if asked else ""


async def watch_policy(is_bound: Callable[[], Awaitable[bool]], note_missing: Callable[[bool], None]) -> None:
    """Check every ten minutes that the admission policy for authors is installed; log a warning while it is not."""
    was_missing = False
    while True:
        try:
            is_missing = not await is_bound()
        except errors.ClusterError as error:
            _log.info("author_policy_unknown", error=str(error))
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: it is looked up again
            log.internal_error("author_policy", error)
        else:
            note_missing(is_missing)
            if is_missing and not was_missing:
                _log.warning(
                    "author_policy_missing",
                    consequence="every author of AppWrappers can run pods with any Secret of the namespace",
                    remedy="apply manifests/policies/author-policy.yaml, or set DISPATCHER_AUTHOR_CHECK",
                )
            was_missing = is_missing
        await asyncio.sleep(POLICY_SECONDS)


SECONDS: Final = 10.0
"""How long it is believed that a cluster does not serve a kind."""
MOST_VERSIONS: Final = 1_000
"""Answers that are remembered, by cluster and version."""


class _Versions(NamedTuple):
    """The versions that a cluster lists, None if it gives no list; `until` is in seconds of the monotonic clock."""

    listed: frozenset[str] | None
    until: float


class ServedKinds:
    """The kinds of these clusters; `is_complete` is true if every cluster can be asked."""

    def __init__(
        self,
        clusters: Mapping[str, WatchedCluster],
        is_complete: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._clusters = clusters
        self._is_complete = is_complete
        self._monotonic = monotonic
        self._versions: BoundedDict[str, _Versions] = BoundedDict(MOST_VERSIONS)
        self._loaded: BoundedDict[tuple[str, str], float] = BoundedDict(MOST_VERSIONS)

    async def find(self, api_version: str, kind: str) -> Kind:
        """The kind as the first cluster that serves it does.

        Raises `NotFound` if no cluster serves it, with a message for users, and `Unavailable` if one may serve it.
        """
        unanswered: errors.ClusterError | None = None
        similar = ""
        for cluster in tuple(self._clusters.values()):
            try:
                return await self._find_in(cluster, api_version, kind)
            except errors.NotFound:
                similar = similar or cluster.discovery.similar(api_version, kind)
            except errors.ClusterError as error:
                unanswered = error
        if unanswered is not None:
            raise unanswered
        if not self._is_complete():
            raise errors.Unavailable(f"a member cluster may serve {kind}, and cannot be asked now")
        remedy = f"did you mean {similar}?" if similar else INSTALL
        raise errors.NotFound(f"no cluster serves {kind} of {api_version}: {remedy}")

    async def _find_in(self, cluster: WatchedCluster, api_version: str, kind: str) -> Kind:
        discovery, now = cluster.discovery, self._monotonic()
        is_fresh = self._loaded.get((cluster.name, api_version), now) > now
        if not discovery.serves((api_version, kind)) and (
            is_fresh or not await self._lists(cluster, api_version)
        ):
            raise discovery.not_served(api_version, kind)
        try:
            return await discovery.find(api_version, kind)
        except errors.NotFound:
            self._loaded[cluster.name, api_version] = now + SECONDS
            raise

    async def _lists(self, cluster: WatchedCluster, api_version: str) -> bool:
        """False if the cluster lists its versions without this one. Raises `Unavailable` while it is not ready."""
        known, now = self._versions.get(cluster.name), self._monotonic()
        if known is None or known.until <= now:
            listed = await cluster.discovery.versions()
            await cluster.discovery.check_ready()  # an unready API server may omit a group that it serves
            known = self._versions[cluster.name] = _Versions(listed, now + SECONDS)
        return known.listed is None or api_version in known.listed
