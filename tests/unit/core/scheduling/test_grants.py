"""Which running gangs may grow: by quota, room and the order of their queue, and never at the expense of a gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.clusters.potential import OnPotential
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.names import QUEUE_LABEL
from dispatcher.api.selector import parse_selector
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
)
from dispatcher.core.model.clusters.potential import FULL_TRUST, PotentialPool, Trust
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.growth import GatedPod, GrowthRequest, GrowthTrust, PodRef, Shrinking
from dispatcher.core.model.gangs.pods import Gate, Pod
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Pending, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import (
    Access,
    Elastic,
    Queue,
    QueueingStrategy,
    Quota,
    Sharing,
    StopPolicy,
)
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import change_of, decide_in_steps, goes_first
from dispatcher.core.scheduling.growth.growing import Grant, Growing
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.sharing.gangs import RecentUse, active_gang
from tests.builders import at, attempt_of, make_gang, make_record

ASKED_AT = 100
"""Seconds after which the pods of the growth are created."""
CPU = Resources({"cpu": 1000})


def ray(name: str = "ray", cpu: int = 2, phase: Phase = Phase.RUNNING, **fields: Any) -> Record:  # noqa: ANN401
    """A running gang of one pod, with the cpus that it asks for."""
    return make_record(phase, name, gang=make_gang(cpu=1000 * cpu), **fields)


def waiting(reason: str | None, *, cpu: int = 4, seconds: float = 50, **fields: Any) -> Record:  # noqa: ANN401
    """A gang that waits for this reason since before the growth was asked for; None if no cycle has decided on it."""
    pending = None if reason is None else Pending(reason, "it waits", "cpu", "hub")
    record = make_record(Phase.QUEUED, "large", gang=make_gang(cpu=1000 * cpu), pending=pending)
    return replace(record, **{"created_at": at(seconds).replace(microsecond=0), **fields})


TEAM_A = parse_selector("team=a", "")


@dataclass
class Hub:
    """A hub of nodes with 4 cpus each, where gangs run and ask for more pods of one cpu each."""

    nodes: int = 2
    queues: Sequence[Queue] | None = None
    mode: FitMode = FitMode.NODE
    seconds: float = 200
    closed: Closed | None = None
    provides: ProvisioningClass | None = None
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    has_member: bool = False
    pools: tuple[PotentialPool, ...] = ()
    trust: Trust = FULL_TRUST
    usage: RecentUse = field(default_factory=dict)
    access: Access = Access.OPEN
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def ledger(self, holders: Iterable[Record]) -> CapacityLedger:
        """The ledger with these gangs, whose pods run."""
        ledger = CapacityLedger(self.mode, "hub")
        for number in range(self.nodes):
            ledger.set_node(Node(f"n{number}", Resources({"cpu": 4000, "gpu": 1}), labels=self.labels))
        ledger.set_pools(self.pools)
        for record in holders:
            ledger.reserve(record.uid, record.gang, attempt_of(record).assignment, record.grown)
            base = Pod(f"{record.name}-0", record.gang.demand, owner=record.uid, can_be_gated=True)
            ledger.set_pod(base)
        return ledger

    def decide(
        self,
        asks: Mapping[Record, int | Sequence[tuple[float, int]]],
        queued: Iterable[Record] = (),
        others: Iterable[Record] = (),
    ) -> list[Grant]:
        """The decisions; each gang asks for so many pods of one cpu, or for pods by age and cpus."""
        holders = [*asks, *others]
        ledger, growing = self.ledger(holders), []
        for record, asked in asks.items():
            pods = [(ASKED_AT, 1)] * asked if isinstance(asked, int) else asked
            for number, (seconds, cpu) in enumerate(pods):
                gate = Gate("team-a", f"{record.name}-{number + 1}", f"{at(seconds):%Y-%m-%dT%H:%M:%SZ}")
                uid = f"{record.name}-{number + 1}"
                ledger.set_pod(Pod(uid, CPU * cpu, owner=record.uid, gate=gate, can_be_gated=True))
            growing.append(Growing.of(record, ledger))
        defaults = Defaults(access=self.access)
        forest = Forest.undeclared(defaults) if self.queues is None else Forest.of(self.queues, defaults)
        active = [found for each in holders if (found := active_gang(each, is_unreachable=False)) is not None]
        known = incremental.run(WaitingGangs.of(list(queued), forest, at(self.seconds), self.reservations))
        facts = GrantFacts(
            forest,
            active,
            known,
            at(self.seconds),
            self.reservations,
            self.usage,
            namespaces=self.namespaces,
        )
        capacity = ledger.snapshot().provided_by(self.provides).trusting(self.trust)
        snapshots = {"hub": ClusterSnapshot("hub", capacity, closed=self.closed)}
        if self.has_member:
            snapshots["east"] = ClusterSnapshot("east", CapacityLedger(self.mode, "east").snapshot())
        return incremental.run(decide_in_steps(growing, facts, snapshots))


def told(grants: Iterable[Grant]) -> dict[str, tuple[int, str]]:
    """How many pods each gang is granted, and why the others wait."""
    return {
        each.record.name: (len(each.pods), each.request.reason if each.request else "") for each in grants
    }


@pytest.mark.parametrize("mode", FitMode)
def test_growth_is_granted_as_far_as_there_is_room(mode: FitMode) -> None:
    gang = ray()
    (grant,) = Hub(mode=mode).decide({gang: 8})
    assert [each.name for each in grant.pods] == [f"ray-{number}" for number in range(1, 7)]
    assert grant.amounts == CPU * 6
    assert grant.note == "6 pods may start: cpu 6"
    assert grant.request is not None
    assert grant.request == GrowthRequest(
        2,
        CPU * 2,
        at(200),
        "InsufficientResources",
        "2 more pods wait (cpu 2): cluster hub: cpu: needs 1, 0 free",
    )


def test_growth_is_granted_within_the_quota_of_pods() -> None:
    queues = (Queue("default", resources={"pods": Quota(3)}),)
    (grant,) = Hub(queues=queues).decide({ray(): 3})
    assert (len(grant.pods), grant.count) == (2, 2)
    assert grant.request is not None
    assert grant.request.reason == "InsufficientQuota"
    assert "pods: needs 1, 0 available; nominal 3, 3 used" in grant.request.message

    change = change_of(grant, at(210))
    assert change is not None
    assert change.after.quota_charge["pods"] == 3
    (grant,) = Hub(queues=queues).decide({change.after: 3})
    assert (grant.pods, grant.count) == ((), 2)
    larger = (Queue("default", resources={"pods": Quota(4)}),)
    (grant,) = Hub(queues=larger).decide({change.after: 3})
    assert (len(grant.pods), grant.count, grant.amounts) == (1, 3, CPU * 3)


def test_pods_within_the_resources_the_gang_holds_are_no_request() -> None:
    grown = run_changes.grant(ray(), CPU * 2, None, "2 pods", at(90)).after
    (grant,) = Hub().decide({grown: 3})
    assert (len(grant.pods), grant.amounts) == (1, CPU * 3)
    assert told(Hub().decide({grown: 2})) == {"ray": (0, "")}


def test_growth_is_charged_beyond_the_resources_the_gang_holds_unused() -> None:
    """Two of its four cpus are of a pod that is gone: a pod of three cpus adds one."""
    pod = GatedPod("team-a", "large", "u", CPU * 3, f"{at(ASKED_AT):%Y-%m-%dT%H:%M:%SZ}")
    ledger = CapacityLedger(FitMode.NODE, "hub")
    ledger.set_node(Node("n1", Resources({"cpu": 4000})))
    facts = GrantFacts(Forest.of([Queue("a", None, {"cpu": Quota(5000)})]), [], WaitingGangs(), at(200))
    snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
    growing = Growing(ray(cpu=4, queue="a"), CPU * 2, [pod])
    facts = replace(
        facts, active=[gang for gang in [active_gang(growing.record, is_unreachable=False)] if gang]
    )
    (grant,) = incremental.run(decide_in_steps([growing], facts, snapshots))
    assert (grant.pods, grant.amounts) == ((pod,), CPU)


def test_gang_that_gives_up_surplus_pods_is_granted_none_in_their_place() -> None:
    grown = run_changes.grant(ray(), CPU * 2, None, "2 pods", at(90)).after
    given = Shrinking((PodRef("team-a", "ray-9", "uid-9"),), CPU, "uid-of-another")
    shrinking = run_changes.give_up(grown, given, Reason.FAIR_SHARE, "1 surplus pod", at(95)).after
    # The first pod is within what it keeps: it is no growth.
    message = "1 more pod waits (cpu 1): its surplus pods give way to another gang"
    left = GrowthRequest(1, CPU, at(200), "GivesWay", message)
    assert Hub().decide({shrinking: 2}) == [Grant(shrinking, (), CPU * 2, left)]


def test_gang_without_gated_pods_asks_for_nothing_any_more() -> None:
    (grant,) = Hub().decide({ray(): 0})
    assert grant == Grant(ray(), amounts=NOTHING)


@pytest.mark.parametrize(
    ("closed", "is_over"),
    [
        pytest.param(Closed("ClusterDraining", "an operator drains it"), True, id="drained"),
        pytest.param(Closed("ClusterNotReported", "its nodes and pods are being listed"), False, id="listed"),
        pytest.param(Closed("ClusterUnreachable", "silence"), False, id="unreachable"),
    ],
)
def test_request_is_not_over_while_the_pods_of_its_cluster_are_not_known(
    closed: Closed, is_over: bool
) -> None:
    known = GrowthRequest(1, CPU, at(90), "InsufficientResources", "1 more pod waits")
    gang = run_changes.note_growth_request(ray(), known, at(90)).after
    assert Hub(closed=closed).decide({gang: 0}) == ([Grant(gang)] if is_over else [])
    assert [each.request.since for each in Hub(closed=closed).decide({gang: 1}) if each.request] == [at(200)]


def test_two_gangs_share_free_capacity_by_priority_and_then_by_the_age_of_their_pods() -> None:
    low, high = ray("low", 1), ray("high", 1, priority=5)
    assert told(Hub(nodes=1).decide({low: 2, high: 2})) == {
        "low": (0, "InsufficientResources"),
        "high": (2, ""),
    }
    first, second = ray("first", 1), ray("second", 1)
    asks: dict[Record, int | Sequence[tuple[float, int]]] = {
        first: [(110, 1), (130, 1)],
        second: [(100, 1), (120, 1)],
    }
    granted = {each.record.name: [pod.name for pod in each.pods] for each in Hub(nodes=1).decide(asks)}
    assert granted == {"first": ["first-1"], "second": ["second-1"]}


def test_large_pod_that_waits_does_not_stop_a_small_one() -> None:
    (grant,) = Hub().decide({ray(): [(100, 5), (101, 1)]})
    assert [each.name for each in grant.pods] == ["ray-2"]
    assert grant.request is not None
    assert grant.request.reason == "LargerThanCluster"
    assert grant.request.pods == 1


QUOTA = (Queue("a", None, {"cpu": Quota(4000)}), Queue("b", None, {"cpu": Quota(4000)}))


@pytest.mark.parametrize("sharing", Sharing)
def test_growth_needs_quota_of_its_queue(sharing: Sharing) -> None:
    tree = (
        Queue("org", sharing=sharing),
        Queue("a", "org", {"cpu": Quota(4000, 0)}),
        Queue("b", "org", {"cpu": Quota(4000)}),
    )
    (grant,) = Hub(queues=tree).decide({ray(queue="a"): 3})
    assert (len(grant.pods), grant.amounts) == (2, CPU * 2)
    assert grant.request is not None
    assert grant.request.message == (
        "1 more pod waits (cpu 1): quota of a: cpu: needs 1, 0 available; nominal 4, 4 used"
    )


def test_growth_may_borrow_but_takes_no_quota_that_a_head_waits_for() -> None:
    tree = (Queue("org"), Queue("a", "org", {"cpu": Quota(4000)}), Queue("b", "org", {"cpu": Quota(4000)}))
    grows = ray(cpu=4, queue="a")
    assert told(Hub(queues=tree).decide({grows: 2})) == {"ray": (2, "")}
    head = waiting("InsufficientQuota", cpu=6, queue="b")
    assert told(Hub(queues=tree).decide({grows: 2}, [head])) == {"ray": (0, "ReservedForAnother")}


def taken(record: Record, *times: float) -> Record:
    """The gang once surplus was granted to it and taken for another gang at these seconds."""
    for seconds in times:
        record = run_changes.grant(record, CPU, None, "1 pod", at(seconds)).after
        given = Shrinking((PodRef("team-a", "ray-9", "uid-9"),), NOTHING, "uid-of-another")
        record = run_changes.give_up(record, given, Reason.FAIR_SHARE, "1 surplus pod", at(seconds)).after
        record = run_changes.note_growth(record, record.placed_gang.demand, at(seconds)).after
    return record


@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize(
    ("nominal", "preempted", "given", "granted"),
    [
        pytest.param(2, (150, 160), (), 0, id="preempted-as-often-as-allowed"),
        pytest.param(2, (), (150, 160), 0, id="surplus-taken-as-often"),
        pytest.param(2, (150,), (160,), 0, id="both-count-together"),
        pytest.param(2, (150,), (), 2, id="less-often"),
        pytest.param(2, (-86_300, 150), (), 2, id="a-day-ago"),
        pytest.param(3, (150, 160), (), 1, id="within-its-own-quota"),
    ],
)
def test_growth_of_a_gang_that_gave_way_too_often_does_not_borrow(
    sharing: Sharing, nominal: int, preempted: Sequence[float], given: Sequence[float], granted: int
) -> None:
    queues = (
        Queue("org", sharing=sharing),
        Queue("a", "org", {"cpu": Quota(1000 * nominal)}, max_preemptions=2),
        Queue("b", "org", {"cpu": Quota(6000)}),
    )
    gang = taken(ray(queue="a", preempted_at=tuple(map(at, preempted))), *given)
    reason = "" if granted == 2 else "PreemptedTooOften"
    (grant,) = Hub(queues=queues).decide({gang: 2})
    assert (len(grant.pods), grant.request.reason if grant.request else "") == (granted, reason)


def test_growth_of_a_gang_that_may_not_be_preempted_does_not_borrow() -> None:
    tree = (
        Queue("org"),
        Queue("a", "org", {"cpu": Quota(2000)}, preemptible_below=5),
        Queue("b", "org", {"cpu": Quota(4000)}),
    )
    assert told(Hub(queues=tree).decide({ray(queue="a", priority=5): 1})) == {"ray": (0, "OverNominalQuota")}
    assert told(Hub(queues=tree).decide({ray(queue="a", priority=4): 1})) == {"ray": (1, "")}


REST = ("LargerThanCluster", "LargerThanQuota", "QueueStopped", "ClusterUnreachable")


@pytest.mark.parametrize(
    ("record", "is_behind"),
    [
        *((pytest.param(waiting(each), False, id=each)) for each in REST),
        pytest.param(waiting("InsufficientResources"), True, id="waits-for-room"),
        pytest.param(waiting("InsufficientQuota"), True, id="waits-for-quota"),
        pytest.param(waiting("AwaitingHeadOfLine"), True, id="behind-a-strict-head"),
        pytest.param(waiting(None), True, id="not-decided-yet"),
        pytest.param(waiting("InsufficientResources", seconds=101), False, id="younger-than-the-pod"),
        pytest.param(waiting("InsufficientResources", seconds=100), True, id="of-the-same-second"),
        pytest.param(waiting("NeedsPotentialNodes"), True, id="waits-for-nodes-to-come"),
        pytest.param(waiting("ProvisioningFailed"), True, id="requests-its-capacity-again"),
        pytest.param(waiting("PreemptionTriggered"), True, id="was-evicted"),
        pytest.param(waiting("InsufficientResources", queue="b"), True, id="of-another-queue-for-room"),
        pytest.param(waiting(None, queue="b"), True, id="of-another-queue-not-decided-yet"),
        pytest.param(
            waiting("InsufficientResources", queue="b", seconds=101), False, id="of-another-queue-younger"
        ),
        pytest.param(
            waiting("InsufficientResources", queue="b", cpu=9), False, id="of-another-queue-too-large-for-it"
        ),
        *(
            pytest.param(waiting(each, queue="b"), False, id=f"of-another-queue-{each}")
            for each in ("InsufficientQuota", "AwaitingHeadOfLine", "NeedsPotentialNodes")
        ),
        pytest.param(waiting("InsufficientResources", eligible_at=at(300)), False, id="in-a-pause"),
        pytest.param(waiting("AwaitingApproval"), False, id="lacks-approvals"),
        pytest.param(
            waiting(
                "InsufficientResources",
                requirements=ClusterRequirements(ruled_out=frozenset({("hub", "its name is taken")})),
            ),
            False,
            id="waits-for-room-elsewhere",
        ),
        pytest.param(
            waiting(
                "InsufficientQuota",
                requirements=ClusterRequirements(ruled_out=frozenset({("hub", "its name is taken")})),
            ),
            True,
            id="waits-for-quota-elsewhere",
        ),
    ],
)
def test_growth_waits_for_the_gangs_that_were_queued_before(record: Record, is_behind: bool) -> None:
    gang = ray(queue="a")
    record = replace(record, queue=record.queue if record.queue == "b" else "a")
    hub = Hub(queues=QUOTA, has_member=True)
    expected = (0, "GrowthBehindGang") if is_behind else (1, "")
    assert told(hub.decide({gang: 1}, [record])) == {"ray": expected}
    first = tuple(replace(each, elastic=Elastic.FIRST) for each in QUOTA)
    assert told(Hub(queues=first).decide({gang: 1}, [record])) == {"ray": (1, "")}


@pytest.mark.parametrize(("seconds", "is_behind"), [(ASKED_AT + 599, True), (ASKED_AT + 600, False)])
@pytest.mark.parametrize("queues", [None, [Queue("a"), Queue("b")]])
@pytest.mark.parametrize("queue", ["a", "b"])
def test_growth_waits_for_a_gang_that_never_fits_no_longer_than_the_starvation_bound(
    queue: str, queues: Sequence[Queue] | None, seconds: float, is_behind: bool
) -> None:
    never = waiting("InsufficientResources", queue=queue, blocked_since=at(60))
    found = told(Hub(queues=queues, seconds=seconds).decide({ray(queue="a"): 1}, [never]))
    assert found == {"ray": (0, "GrowthBehindGang") if is_behind else (1, "")}


def test_growth_waits_for_the_starvation_bound_of_its_own_queue() -> None:
    queues = [Queue("a", starvation_bound=timedelta(minutes=1)), Queue("b")]
    never = waiting("InsufficientResources", queue="b")
    for seconds, granted in ((ASKED_AT + 59, 0), (ASKED_AT + 60, 1)):
        hub = Hub(queues=queues, seconds=seconds)
        assert told(hub.decide({ray(queue="a"): 1}, [never]))["ray"][0] == granted


@pytest.mark.parametrize(("queue", "granted"), [("a", 0), ("b", 1)])
def test_growth_in_a_strict_queue_stays_behind_the_gangs_of_its_own_queue(queue: str, granted: int) -> None:
    strict = [Queue("a", strategy=QueueingStrategy.STRICT_FIFO), Queue("b")]
    hub = Hub(queues=strict, seconds=ASKED_AT + 9_000)
    never = waiting("InsufficientResources", queue=queue)
    assert told(hub.decide({ray(queue="a"): 1}, [never]))["ray"][0] == granted


def test_growth_takes_nothing_that_is_kept_for_another_gang_however_long_it_has_waited() -> None:
    starved = waiting("InsufficientResources", cpu=6, seconds=50, blocked_since=at(60))
    kept = Reservation("hub", at(660), at(9_000), at(660))
    found = Hub(seconds=2_000, reservations={starved.uid: kept}).decide({ray(): 1}, [starved])
    assert told(found) == {"ray": (0, "ReservedForAnother")}


def test_growth_names_the_oldest_gang_before_it() -> None:
    older = replace(waiting("InsufficientResources", seconds=40, queue="a"), uid="u-old", name="old")
    (grant,) = Hub(queues=QUOTA).decide(
        {ray(queue="a"): 2}, [waiting("InsufficientResources", queue="a"), older]
    )
    assert grant.request is not None
    assert grant.request.message == (
        "2 more pods wait (cpu 2): default/old was queued before in queue a, and waits"
    )


def test_growth_names_the_queue_of_the_gang_before_it() -> None:
    old = waiting("InsufficientResources", queue="b")
    (grant,) = Hub(queues=QUOTA).decide({ray(queue="a"): 1}, [old])
    assert grant.request is not None
    assert (
        grant.request.message
        == "1 more pod waits (cpu 1): default/large was queued before in queue b, and waits"
    )


def test_without_queues_growth_waits_for_every_gang_before_it() -> None:
    (grant,) = Hub().decide({ray(): 1}, [waiting("InsufficientResources", queue="other")])
    assert grant.request is not None
    assert grant.request.message == "1 more pod waits (cpu 1): default/large was queued before, and waits"


def test_only_growth_of_queues_that_say_so_goes_first() -> None:
    first = Forest.of([Queue("a", elastic=Elastic.FIRST), Queue("b")])
    assert goes_first(ray(queue="a"), first)
    assert not goes_first(ray(queue="b"), first)
    assert not goes_first(ray(queue="gone"), first)
    assert not goes_first(ray(queue="a"), Forest.undeclared())


def test_growth_takes_no_capacity_of_a_backfill_reservation() -> None:
    starved = waiting("InsufficientResources", cpu=6, seconds=150, blocked_since=at(160))
    kept = Reservation("hub", at(160), at(900), at(160))
    asks = {ray(): 1}
    assert told(Hub(reservations={starved.uid: kept}).decide(asks, [starved])) == {
        "ray": (0, "ReservedForAnother")
    }
    assert told(Hub().decide(asks, [starved])) == {"ray": (1, "")}
    resting = replace(kept, cluster="")
    assert told(Hub(reservations={starved.uid: resting}).decide(asks, [starved])) == {"ray": (1, "")}


def test_growth_takes_no_cluster_reserved_for_a_starved_gang_of_another_queue() -> None:
    queues = tuple(replace(each, starvation_bound=timedelta(seconds=30)) for each in QUOTA)
    starved = waiting("InsufficientResources", cpu=3, queue="b", seconds=150, blocked_since=at(160))
    asks = {ray(queue="a"): 2}
    kept = {starved.uid: Reservation("hub", at(0), at(3600), at(0))}
    assert told(Hub(1, queues, reservations=kept).decide(asks, [starved])) == {
        "ray": (0, "ReservedForAnother")
    }
    assert told(Hub(1, queues, reservations=kept, seconds=180).decide(asks, [starved])) == {"ray": (2, "")}
    assert told(Hub(1, queues).decide(asks, [starved])) == {"ray": (2, "")}


def test_growth_takes_no_capacity_that_is_promised() -> None:
    promised = waiting("AwaitingRelease", gang=make_gang(2, cpu=4000), queue="b", seconds=150)
    leaving = ray("leaving", 2, phase=Phase.REQUEUEING, queue="b")
    queues = (Queue("a"), Queue("b"))
    grants = Hub(4, queues).decide({ray(queue="a"): 6}, [promised], [leaving])
    # Of the twelve cpus that are free, those of two nodes are promised.
    assert told(grants) == {"ray": (4, "ReservedForAnother")}


def test_gang_that_leaves_grows_no_more() -> None:
    for phase in (Phase.REQUEUEING, Phase.SUSPENDING, Phase.DELETING, Phase.DISPATCHING):
        assert Hub().decide({ray(phase=phase): 1}) == []


def test_nothing_is_granted_in_a_cluster_that_takes_no_gangs() -> None:
    closed = Closed("ClusterDraining", "an operator drains it")
    (grant,) = Hub(closed=closed).decide({ray(): 1})
    assert grant.request is not None
    assert grant.request.reason == "ClusterDraining"
    assert grant.request.message == "1 more pod waits (cpu 1): cluster hub: an operator drains it"


@pytest.mark.parametrize(
    ("queues", "reason"),
    [
        pytest.param([Queue("a", stop_policy=StopPolicy.HOLD)], "QueueStopped", id="held"),
        pytest.param([Queue("b")], "QueueNotFound", id="gone"),
        pytest.param([Queue("a"), Queue("c", "a")], "QueueNotLeaf", id="has-children"),
    ],
)
def test_nothing_is_granted_in_a_queue_that_dispatches_nothing(queues: list[Queue], reason: str) -> None:
    assert told(Hub(queues=queues).decide({ray(queue="a"): 1})) == {"ray": (0, reason)}


@pytest.mark.parametrize(
    ("queue", "labels", "granted"),
    [
        pytest.param(Queue("a", namespace_selector=TEAM_A), {"team": "a"}, 1, id="selected"),
        pytest.param(Queue("a", namespace_selector=TEAM_A), {"team": "b"}, 0, id="not-selected"),
        pytest.param(Queue("a", namespace_selector=TEAM_A), {}, 0, id="unknown-namespace"),
        pytest.param(Queue("a"), {QUEUE_LABEL: "a"}, 1, id="named-by-the-namespace"),
        pytest.param(Queue("a"), {}, 0, id="named-by-nobody"),
    ],
)
def test_nothing_is_granted_in_a_queue_that_does_not_serve_the_namespace_any_more(
    queue: Queue, labels: dict[str, str], granted: int
) -> None:
    """The gang was dispatched before an operator closed the queue to its namespace."""
    gang = ray(queue="a")
    hub = Hub(queues=[queue], access=Access.SELECTED, namespaces={gang.namespace: labels})
    assert told(hub.decide({gang: 1})) == {"ray": (granted, "" if granted else "NamespaceNotAllowed")}


def test_growth_needs_room_that_is_there_where_capacity_is_requested() -> None:
    provides = ProvisioningClass("queued-provisioning.gke.io", frozenset({"cpu"}))
    assert told(Hub(provides=provides, nodes=1).decide({ray(cpu=3): 2})) == {
        "ray": (1, "InsufficientResources")
    }


@pytest.mark.parametrize("most", [0, 1])
def test_growth_may_trust_in_nodes_that_an_autoscaler_adds_for_pending_pods(most: int) -> None:
    pools = (PotentialPool("more", Node("more", Resources({"cpu": 4000}), labels={"pool": "more"}), most),)
    (grant,) = Hub(nodes=1, pools=pools).decide({ray(cpu=3): 6})
    assert len(grant.pods) == 1 + 4 * most
    trusts = "; trusts 1 node of pool more in cluster hub to come" if most else ""
    assert grant.note == f"{_pods(1 + 4 * most)} may start: cpu {1 + 4 * most}{trusts}"
    change = change_of(grant, at(200))
    assert change is not None
    assert attempt_of(change.after).growth_trust == (
        GrowthTrust(at(200), ("potential/more/0",)) if most else None
    )


def _pods(count: int) -> str:
    return f"{count} pod{'s' * (count != 1)}"


UNTIL = at(900)
WAITS = "with onPotential: Wait it is not dispatched before"
DISTRUSTED = f"pool more is not trusted until {UNTIL:%Y-%m-%d %H:%M:%S} UTC, because its nodes did not come"


@pytest.mark.parametrize(
    ("trust", "why"),
    [
        pytest.param(Trust(OnPotential.WAIT), WAITS, id="waits-for-nodes"),
        pytest.param(Trust(distrusted=(("more", UNTIL),)), DISTRUSTED, id="not-trusted"),
    ],
)
@pytest.mark.parametrize(
    ("cpu", "reason", "begins"),
    [
        pytest.param(1, "InsufficientResources", "would also fit with", id="others-may-end"),
        pytest.param(5, "NeedsPotentialNodes", "it needs", id="only-potential-nodes-hold-it"),
    ],
)
def test_growth_that_potential_nodes_would_hold_names_their_pool(
    trust: Trust, why: str, cpu: int, reason: str, begins: str
) -> None:
    pools = (PotentialPool("more", Node("more", Resources({"cpu": 8000}), labels={"pool": "more"}), 2),)
    (grant,) = Hub(nodes=1, pools=pools, trust=trust).decide({ray(cpu=4): [(ASKED_AT, cpu)]})
    assert grant.request is not None
    assert grant.request.reason == reason
    assert f"{begins} 1 node of pool more to come; {why}" in grant.request.message


def test_growth_counts_the_other_grants_of_the_same_cycle_in_the_quota() -> None:
    one, two = ray("one", 1, queue="a"), ray("two", 1, queue="a")
    assert told(Hub(queues=QUOTA).decide({one: 2, two: 2})) == {
        "one": (2, ""),
        "two": (0, "InsufficientQuota"),
    }


ZONE = NodeRequirements((), (NodeTerm((LabelRequirement("zone", LabelOperator.IN, ("east",)),), ()),))


@pytest.mark.parametrize(
    ("templates", "labels", "granted"),
    [
        pytest.param([(1, ZONE)], {}, 0, id="its-template-needs-other-nodes"),
        pytest.param([(1, ZONE)], {"zone": "east"}, 1, id="its-template-needs-these-nodes"),
        pytest.param([(2, ZONE), (1, NodeRequirements())], {}, 1, id="the-head-needs-other-nodes"),
        pytest.param([(2, ZONE), (3, NodeRequirements())], {}, 0, id="it-may-be-of-either-template"),
    ],
)
def test_pod_goes_where_its_template_may_go(
    templates: list[tuple[int, NodeRequirements]], labels: Mapping[str, str], granted: int
) -> None:
    sets = tuple(PodSet(1, CPU * cpu, nodes=nodes) for cpu, nodes in templates)
    gang = Gang(sum_of(each.total for each in sets), len(sets), sets)
    record = make_record(Phase.RUNNING, "ray", gang=gang)
    (grant,) = Hub(nodes=4, labels=labels).decide({record: 1})
    assert len(grant.pods) == granted
