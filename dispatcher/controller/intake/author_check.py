"""Whether the author of an AppWrapper may create what it wraps, where the dispatcher itself has to ask.

The API server is asked beside intake, and not by it: an AppWrapper about which an answer is missing is taken in once
that is there, and holds up no other. Of one namespace only two are asked about at a time. An answer is good for some
seconds; a question that fails is asked again, and nothing is dispatched meanwhile.

The rights count as they are when an AppWrapper is taken in, as for a policy of the API server they count when it is
created: what was accepted stays accepted, as the pods of a Deployment do.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from dispatcher import errors, log
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.spec_errors import SpecError
from dispatcher.api.submitter import Submitter
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.intake.authorization import Access, WrappedKind, check_known, wrapped_kinds
from dispatcher.kube.discovery import Kind

ANSWER_SECONDS: Final = 10.0
"""How long an answer is good for: so long at most a right that was given or taken away is not noticed."""

MOST_ANSWERS: Final = 10_000
AT_ONCE: Final = 16
"""How many AppWrappers are asked about at the same time, each with one request at a time."""

AT_ONCE_IN_A_NAMESPACE: Final = 2

POLICY_SECONDS: Final = 600.0
"""How often it is looked up whether the policy is installed."""

_log = log.get("author_check")


class _Question(NamedTuple):
    """The answer may be that no cluster serves the version, so it is about no other version."""

    submitter: Submitter
    namespace: str
    api_version: str
    kind: str


class _Answer(NamedTuple):
    """`problem` is empty if the author may; it is good until `until`, in seconds of the monotonic clock."""

    problem: str
    until: float


class _Asked(NamedTuple):
    submitter: Submitter
    namespace: str
    kinds: tuple[WrappedKind, ...]


class AuthorCheck:
    """Asks what authors may create; `answered` is told the uid of whom there is an answer about.

    `is_allowed` asks the API server of the hub. `is_complete` says whether every cluster there is can be asked which
    kinds it serves, `is_wanted` whether there still is an AppWrapper of a uid.
    """

    def __init__(
        self,
        is_allowed: Callable[[Access], Awaitable[bool]],
        clusters: Mapping[str, Cluster],
        is_complete: Callable[[], bool],
        is_wanted: Callable[[str], bool],
        answered: Callable[[str], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._is_allowed = is_allowed
        self._clusters = clusters
        self._is_complete = is_complete
        self._is_wanted = is_wanted
        self._answered = answered
        self._monotonic = monotonic
        self._waiting: dict[str, _Asked] = {}
        self._answers: OrderedDict[_Question, _Answer] = OrderedDict()
        self._queue = WorkQueue(monotonic, self._namespace_of, AT_ONCE_IN_A_NAMESPACE)

    def may_wrap(self, uid: str, submitter: Submitter, namespace: str, spec: AppWrapperSpec) -> bool:
        """True if the author may create all that is wrapped, False if that is being asked; `SpecError` if not."""
        kinds = wrapped_kinds(spec)
        check_known(submitter)
        is_known = True
        for kind in kinds:
            answer = self._answer_to(_Question(submitter, namespace, kind.api_version, kind.kind))
            if answer is None:
                is_known = False
            elif answer.problem:
                remedy = "Ask an administrator for that right, then submit the AppWrapper anew"
                raise SpecError(kind.path, answer.problem, remedy)
        if not is_known and uid not in self._waiting:
            self._waiting[uid] = _Asked(submitter, namespace, kinds)
            self._queue.add(uid)
        return is_known

    @property
    def waiting(self) -> int:
        """How many AppWrappers are being asked about."""
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
        asked = self._waiting[uid]
        if self._is_wanted(uid):
            for kind in asked.kinds:
                if await self._problem(asked, kind):
                    break
        del self._waiting[uid]
        self._answered(uid)

    async def _problem(self, asked: _Asked, kind: WrappedKind) -> str:
        """Why the author may not wrap this kind; empty if the author may."""
        question = _Question(asked.submitter, asked.namespace, kind.api_version, kind.kind)
        known = self._answer_to(question)
        if known is not None:
            return known.problem
        problem = await self._ask(asked, kind)
        self._answers[question] = _Answer(problem, self._monotonic() + ANSWER_SECONDS)
        self._answers.move_to_end(question)
        while len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)
        return problem

    async def _ask(self, asked: _Asked, kind: WrappedKind) -> str:
        found = await self._find(kind)
        if found is None:
            return f"no cluster serves {kind.kind} in version {kind.api_version}, so nobody may create it"
        namespace = asked.namespace if found.namespaced else ""
        access = Access(asked.submitter, namespace, kind.group, found.plural, kind.verb)
        return "" if await self._is_allowed(access) else access.denial()

    async def _find(self, kind: WrappedKind) -> Kind | None:
        """A kind as the first cluster serves it that does; None if none does."""
        silent: errors.ClusterError | None = None
        for cluster in tuple(self._clusters.values()):
            try:
                return await cluster.discovery.find(kind.api_version, kind.kind)
            except errors.NotFound:
                continue
            except errors.ClusterError as error:
                silent = error
        if silent is not None:
            raise silent
        if not self._is_complete():
            raise errors.Unavailable(f"a member cluster may serve {kind.kind}, and cannot be asked now")
        return None

    def _answer_to(self, question: _Question) -> _Answer | None:
        answer = self._answers.get(question)
        return answer if answer is not None and answer.until > self._monotonic() else None

    def _namespace_of(self, uid: str) -> str:
        asked = self._waiting.get(uid)
        return asked.namespace if asked else ""


async def watch_policy(is_bound: Callable[[], Awaitable[bool]], note_missing: Callable[[bool], None]) -> None:
    """Look up now and then whether the API server's policy about authors is installed, and say so if it is not."""
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
                    consequence="whoever may create AppWrappers gets pods with any Secret of the namespace",
                    remedy="apply manifests/author-policy.yaml, or set DISPATCHER_AUTHOR_CHECK",
                )
            was_missing = is_missing
        await asyncio.sleep(POLICY_SECONDS)
