"""The lifecycle policy of a gang: how long each health issue may last, and when the gang is complete.

It follows the author's fields (`schedulingSpec`, `completionstatus`, v1beta2's annotations), else defaults. MCAD's
fields have MCAD's meaning; where MCAD has none, v1beta2's apply.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from msgspec import Struct, field

from dispatcher.api import conditions as words
from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.appwrapper import AppWrapperSpec, Requeuing, WaitGrowth, WrappedObject
from dispatcher.core.kinds.completion import CompletionRule, completion_rule, with_asked_pods
from dispatcher.core.kinds.demand import pods_by_item
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.records.record import Record

ADMISSION_GRACE: Final = timedelta(minutes=1)
WARMUP_GRACE: Final = timedelta(minutes=5)
FAILURE_GRACE: Final = timedelta(minutes=1)
RETRY_PAUSE: Final = timedelta(seconds=90)
RETRY_LIMIT: Final = 3
KEPT: Final = timedelta(days=7)
KUEUE_WAIT: Final = timedelta(days=1)
_LONGEST_SECONDS: Final = 2**31 - 1


class LifecyclePolicy(Struct, frozen=True):
    """The lifecycle policy of one AppWrapper; `items` in the order of its wrapped objects.

    `limit` is how long it may run from its dispatch. Without pods for `admission_grace`, with pods that do not
    run for `warmup_grace`, with failed pods (v1beta2) for `failure_grace`, it is evicted, at most
    `retry_limit` times (None for ever), to be dispatched again after `retry_pause` at the earliest.
    `expects_pods` is false for kinds that may make no pods. After `force_deletion_after`
    stuck pods are deleted without their node's consent; None waits for ever. Objects of an ended gang are kept for
    `kept_completed` or `kept_failed`. For `kueue_wait` of each attempt pods are not missed that Kueue has not admitted;
    zero misses them as any others.
    """

    items: tuple[CompletionRule, ...] = ()
    min_available: int | None = None
    requeuing: Requeuing = field(default_factory=Requeuing)
    limit: timedelta | None = None
    expects_pods: bool = False
    has_components: bool = False
    admission_grace: timedelta = ADMISSION_GRACE
    warmup_grace: timedelta = WARMUP_GRACE
    failure_grace: timedelta = FAILURE_GRACE
    retry_pause: timedelta = RETRY_PAUSE
    retry_limit: int | None = RETRY_LIMIT
    force_deletion_after: timedelta | None = timedelta(minutes=10)
    kept_completed: timedelta = KEPT
    kept_failed: timedelta = KEPT
    kueue_wait: timedelta = KUEUE_WAIT
    terminal_exit_codes: frozenset[int] = frozenset()
    retryable_exit_codes: frozenset[int] = frozenset()

    def wait(self, requeuings: int) -> timedelta:
        """How long the gang may be short of pods after so many requeuings: T, 2T, 4T…; T, 2T, 3T…; or always T."""
        seconds = int(self.requeuing.wait.total_seconds())
        match self.requeuing.growth:
            case WaitGrowth.EXPONENTIAL:
                seconds *= 2 ** min(requeuings, 31)
            case WaitGrowth.LINEAR:
                seconds *= requeuings + 1
            case WaitGrowth.NONE:
                pass
        grown = timedelta(seconds=min(seconds, _LONGEST_SECONDS))
        return min(grown, self.requeuing.max_wait or grown)

    def pause(self, reason: str) -> timedelta:
        """The pause between an eviction for that reason and the next dispatch."""
        if reason in words.NOT_BY_THE_GANG:
            return timedelta(0)
        return self.requeuing.pause if reason in words.REASONS_OF_MCAD else self.retry_pause

    def is_spent(self, record: Record, reason: str) -> bool:
        """True if the budget of evictions for this reason is spent; the next issue is a failure."""
        if reason in words.NOT_BY_THE_GANG:
            return False
        if reason in words.REASONS_OF_MCAD:
            limit, used = self.requeuing.max_requeuings, record.requeuings - record.retries
        else:
            limit, used = self.retry_limit, record.retries
        return limit is not None and used >= limit

    @property
    def asks(self) -> int:
        """The pods that its templates ask known kinds for."""
        return sum(item.asks for item in self.items)

    @property
    def counts_failed_pods(self) -> bool:
        """False if every item with pods reports its own failure: until then its controller may retry."""
        return any(item.pods and not item.ends for item in self.items)

    def is_terminal(self, exit_codes: frozenset[int]) -> bool:
        """True if one of these exit codes makes a failure terminal."""
        if exit_codes & self.terminal_exit_codes:
            return True
        return bool(self.retryable_exit_codes) and bool(exit_codes - self.retryable_exit_codes)


def policy_of(
    spec: AppWrapperSpec,
    tolerance: FaultTolerance,
    kept: timedelta = KEPT,
    kinds: Kinds = BUILT_IN,
    kueue_wait: timedelta = KUEUE_WAIT,
) -> LifecyclePolicy:
    """The policy of an AppWrapper; `kept` is the longest time for which objects stay after its end."""
    requeuing = spec.scheduling.requeuing
    retry_limit = requeuing.max_requeuings if requeuing.explicit else RETRY_LIMIT
    return LifecyclePolicy(
        items=tuple(
            with_asked_pods(completion_rule(wrapped, pods, kinds), wrapped, kinds)
            for wrapped, pods in zip(spec.wrapped, pods_by_item(spec, kinds), strict=True)
        ),
        min_available=spec.min_available,
        requeuing=requeuing,
        limit=spec.scheduling.dispatch_duration.limit,
        expects_pods=any(_is_sure_to_make_pods(wrapped, kinds) for wrapped in spec.wrapped),
        has_components=spec.spelling == "v1beta2",
        admission_grace=_given(tolerance.admission_grace, ADMISSION_GRACE),
        warmup_grace=_given(tolerance.warmup_grace, WARMUP_GRACE),
        failure_grace=_given(tolerance.failure_grace, FAILURE_GRACE),
        retry_pause=_given(tolerance.retry_pause, requeuing.pause if requeuing.explicit else RETRY_PAUSE),
        retry_limit=retry_limit if tolerance.retry_limit is None else tolerance.retry_limit,
        force_deletion_after=(
            requeuing.force_deletion_after
            if tolerance.force_deletion_grace is None
            else tolerance.force_deletion_grace
        ),
        kept_completed=min(kept, _given(tolerance.success_ttl, kept)),
        kept_failed=_given(tolerance.deletion_on_failure_grace, kept),
        kueue_wait=kueue_wait,
        terminal_exit_codes=tolerance.terminal_exit_codes,
        retryable_exit_codes=tolerance.retryable_exit_codes,
    )


def _given(asked: timedelta | None, default: timedelta) -> timedelta:
    return default if asked is None else asked


def _is_sure_to_make_pods(wrapped: WrappedObject, kinds: Kinds) -> bool:
    kind = kinds.row(wrapped.group, wrapped.kind).pods
    return bool(wrapped.pod_sets) or bool(kind and kind.rules)
