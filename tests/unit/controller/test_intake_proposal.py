"""A proposal is the record that intake makes of the same manifest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR, HUB_CLUSTER, LEGACY_GROUP
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.pod_defaults import PodDefaultsOfClusters
from dispatcher.core.intake.proposal import KnownDefaults, known_defaults, propose, with_pod_defaults
from dispatcher.core.kinds.pods.pod_defaults import NO_DEFAULTS, ClusterDefaults, DefaultsSurvey, PodDefaults
from dispatcher.core.model.records.pending_reasons import NOT_CONNECTED
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, SchedulingRules
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.store.snapshot.snapshot_document import document_of, facts_of
from tests.builders import CREATED, make_appwrapper, make_template
from tests.fakes import FakeApiServer, answer, client_of, refusal
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic

Json = dict[str, Any]

JOB = make_template("Job", "batch/v1", name="j")
JOB["spec"] = {"parallelism": 3, "completions": 3, "template": {"spec": make_template()["spec"]}}
GPU = make_template()
GPU["spec"] = {
    "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}
WIDGET = make_template("Widget", "example.com/v1", name="w")


def declared(**requests: str) -> Json:
    """An item with declared pods."""
    resources = {"replicas": 4, "requests": requests}
    return {"resources": {"GenericItems": [{"generictemplate": WIDGET, "custompodresources": [resources]}]}}


def components(*templates: Json) -> Json:
    raw = make_appwrapper()
    raw["spec"] = {"components": [{"template": each} for each in templates]}
    return raw


MANIFESTS = [
    pytest.param(make_appwrapper(), id="pod"),
    pytest.param(make_appwrapper("aw", JOB, GPU, namespace="default"), id="job-and-pod"),
    pytest.param(make_appwrapper(group=LEGACY_GROUP), id="old-group"),
    pytest.param(make_appwrapper(spec=declared(cpu="2", memory="3Gi")), id="declared"),
    pytest.param(components(JOB, GPU), id="components"),
    pytest.param(make_appwrapper(spec={"priority": 9, "priorityslope": 0.5}), id="priority"),
    pytest.param(make_appwrapper(labels={"kueue.x-k8s.io/queue-name": "team", "a": "b"}), id="queue"),
    pytest.param(make_appwrapper(spec={"suspend": True}), id="suspended"),
    pytest.param(
        make_appwrapper(
            spec={"schedulingSpec": {"minAvailable": 1, "dispatchDuration": {"expected": 90, "limit": 120}}}
        ),
        id="dispatch-duration",
    ),
    pytest.param(
        make_appwrapper(
            "aw", JOB, annotations={CLUSTER_SELECTOR: "region in (eu, us)", CLUSTER_PREFERENCE: "!spot"}
        ),
        id="clusters",
    ),
]


def deciding(record: Record) -> dict[str, object]:
    """The parts of a record that decisions depend on."""
    parts = "group namespace name phase priority priority_slope gang requirements conditions queue"
    durations = "expected_seconds limit_seconds"
    return {each: getattr(record, each) for each in (*parts.split(), *durations.split())}


@pytest.mark.parametrize("raw", MANIFESTS)
async def test_a_proposal_is_the_record_that_intake_makes(world: World, raw: Json) -> None:
    record = await world.admit(raw)
    assert record.phase in {Phase.QUEUED, Phase.SUSPENDED}
    proposal = propose(raw, "default", SchedulingRules(), record.phase_since)
    assert deciding(proposal.record) == deciding(record)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(make_appwrapper("aw", WIDGET), id="unknown-kind"),
        pytest.param(make_appwrapper(annotations={CLUSTER_SELECTOR: "region in"}), id="no-selector"),
        pytest.param(make_appwrapper(annotations={CLUSTER_PREFERENCE: "=,"}), id="no-preference"),
        pytest.param(make_appwrapper(spec={"priority": "high"}), id="no-priority"),
        pytest.param(components(WIDGET), id="unknown-component"),
    ],
)
async def test_a_proposal_is_refused_with_the_words_of_intake(world: World, raw: Json) -> None:
    record = await world.admit(raw)
    with pytest.raises(SpecError) as refused:
        propose(raw, "default", SchedulingRules(), record.phase_since)
    assert record.phase is Phase.FAILED
    assert record.message == f"default/aw creation failure: {refused.value}"


# -----------------------------------------------------------------------------------------------------------
# `would` derives the gang that intake derives, from what the leader's snapshot says about the defaults of
# clusters.


NAMES = (HUB_CLUSTER, "east", "west", "north")
CLASSES = ("kata", "runc")
RANGES = "/api/v1/limitranges"
RANGES_HERE = "/api/v1/namespaces/default/limitranges"
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


class Fleet:
    """A hub and three members with defaults of their own, of which some are connected."""

    def __init__(self, servers: dict[str, FakeApiServer], clusters: dict[str, WatchedCluster]) -> None:
        self.servers = servers
        self.connected: list[str] = []
        self.clusters = clusters
        self.defaults = PodDefaultsOfClusters(clusters[HUB_CLUSTER], self._clusters_for, monotonic)

    def _clusters_for(self, requirements: ClusterRequirements) -> list[WatchedCluster]:
        if self.connected == [HUB_CLUSTER]:
            return [self.clusters[HUB_CLUSTER]]
        return [self.clusters[each] for each in self.connected if requirements.selector.matches({"at": each})]

    def give_defaults(self, random: Random) -> None:
        """Give each cluster random LimitRanges and RuntimeClasses; one may refuse to show some."""
        for server in self.servers.values():
            ranges: list[Json] = [
                {
                    "metadata": {"name": f"r{number}", "namespace": random.choice(["default", "other"])},
                    "spec": {"limits": [{"type": "Container", "defaultRequest": a_request(random)}]},
                }
                for number in range(random.randrange(4))
            ]
            here = [each for each in ranges if each["metadata"]["namespace"] == "default"]
            classes: list[Json] = [
                {"metadata": {"name": name}, "overhead": {"podFixed": a_request(random)}}
                for name in CLASSES
                if random.random() < 0.7
            ]
            server.on("GET", RANGES, answer({"metadata": {}, "items": ranges}))
            server.on("GET", RANGES_HERE, answer({"metadata": {}, "items": here}))
            server.on("GET", RUNTIME_CLASSES, answer({"metadata": {}, "items": classes}))
            for each in CLASSES:
                server.on("GET", f"{RUNTIME_CLASSES}/{each}", refusal(404, "NotFound"))
            for named in classes:
                server.on("GET", f"{RUNTIME_CLASSES}/{named['metadata']['name']}", answer(named))
        if random.random() < 0.4:
            refuse(self.servers[random.choice(NAMES[1:])])

    async def snapshot(self) -> list[ClusterFacts]:
        """The clusters of the leader's snapshot, as a command reads them."""
        await self.defaults.survey()
        names = NAMES[:1] if self.connected == [HUB_CLUSTER] else NAMES[1:]
        return [self._written(name) for name in names]

    def _written(self, name: str) -> ClusterFacts:
        closed = None if name in self.connected else Closed(NOT_CONNECTED, "no kubeconfig")
        survey = self.defaults.surveys.get(name)
        facts = ClusterFacts(Cluster(name, labels={"at": name}, closed=closed), defaults=survey)
        return facts_of(document_of(facts), CREATED)

    async def of_hub(self, classes: frozenset[str]) -> PodDefaults:
        """The defaults of the hub, as the author reads them."""
        return await self.clusters[HUB_CLUSTER].pod_defaults.read("default", classes) or NO_DEFAULTS


def a_request(random: Random) -> Json:
    amounts = {"cpu": random.choice(["1", "500m", "2"]), "memory": random.choice(["1Gi", "1Mi"])}
    return {name: amount for name, amount in amounts.items() if random.random() < 0.6}


def refuse(server: FakeApiServer) -> None:
    """Refuse to show the LimitRanges."""
    for path in (RANGES, RANGES_HERE):
        server.on("GET", path, refusal(403, "Forbidden"))


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(FakeApiServer()) for name in NAMES}
        clients = {name: client_of(server) for name, server in servers.items()}
        clusters = {
            name: WatchedCluster(
                name,
                client,
                CapacityLedger(),
                on_capacity=lambda: None,
                on_pods=lambda _: None,
                monotonic=monotonic,
            )
            for name, client in clients.items()
        }
        yield Fleet(servers, clusters)
        for client in clients.values():
            await client.close()


def a_manifest(random: Random) -> Json:
    """One or two pods that request some resources, with or without a RuntimeClass and a selector of clusters."""
    templates = []
    for number in range(random.randint(1, 2)):
        template = make_template(name=f"p{number}")
        template["spec"]["containers"][0]["resources"] = {"requests": a_request(random)}
        if random.random() < 0.6:
            template["spec"]["runtimeClassName"] = random.choice(CLASSES)
        templates.append(template)
    selector = random.choice(["", "at=east", "at in (east, west)"])
    return make_appwrapper("aw", *templates, annotations={CLUSTER_SELECTOR: selector} if selector else {})


@pytest.mark.parametrize("seed", range(12))
async def test_would_counts_a_gang_in_each_cluster_as_intake_does(
    world: World, fleet: Fleet, seed: int
) -> None:
    random = Random(seed)  # noqa: S311  # a test
    fleet.give_defaults(random)
    members = random.sample(NAMES[1:], random.randint(0, 3))
    fleet.connected = sorted(members) if members else [HUB_CLUSTER]
    raw = a_manifest(random)

    proposal = propose(raw, "default", SchedulingRules(), CREATED)
    snapshot = await fleet.snapshot()
    surveys = {each.cluster.name: each.defaults for each in snapshot}
    of_hub = await fleet.of_hub(frozenset(CLASSES))
    known = known_defaults(proposal, [each.cluster for each in snapshot], surveys, of_hub)
    would = with_pod_defaults(proposal, known.defaults, SchedulingRules()).record

    world.intake = world.make_intake(pod_defaults=fleet.defaults.read)
    assert would.gang == (await world.admit(raw)).gang


# --- facts that a snapshot lacks ------------------------------------------------------------------------

HUB = PodDefaults({"cpu": "3"})
EAST = DefaultsSurvey({"default": {"cpu": "1"}}, {})
UNKNOWN = DefaultsSurvey()
CLOSED = Closed(NOT_CONNECTED, "no kubeconfig")


@pytest.mark.parametrize(
    ("clusters", "surveys", "of_hub", "expected"),
    [
        pytest.param(
            [Cluster("east"), Cluster("west")],
            {"east": EAST},
            HUB,
            KnownDefaults(ClusterDefaults(HUB, {"east": PodDefaults({"cpu": "1"})}), ("west",)),
            id="a-member-of-which-a-snapshot-of-an-earlier-release-says-nothing",
        ),
        pytest.param(
            [Cluster("east"), Cluster("west", closed=CLOSED)],
            {"east": EAST},
            None,
            KnownDefaults(ClusterDefaults.of({"east": PodDefaults({"cpu": "1"})})),
            id="a-member-that-is-not-connected",
        ),
        pytest.param(
            [Cluster("east"), Cluster("west")],
            {"east": EAST, "west": UNKNOWN},
            None,
            KnownDefaults(ClusterDefaults.of({"east": PodDefaults({"cpu": "1"})}), ("west",), lacks_hub=True),
            id="neither-a-member-nor-the-hub",
        ),
        pytest.param(
            [Cluster(HUB_CLUSTER)],
            {HUB_CLUSTER: EAST},
            None,
            KnownDefaults(ClusterDefaults.of({HUB_CLUSTER: PodDefaults({"cpu": "1"})})),
            id="the-hub-from-the-snapshot",
        ),
        pytest.param(
            [Cluster(HUB_CLUSTER)],
            {},
            None,
            KnownDefaults(ClusterDefaults.of({HUB_CLUSTER: NO_DEFAULTS}), lacks_hub=True),
            id="the-hub-unknown",
        ),
    ],
)
def test_clusters_with_unknown_pod_defaults_are_named(
    clusters: list[Cluster],
    surveys: dict[str, DefaultsSurvey],
    of_hub: PodDefaults | None,
    expected: KnownDefaults,
) -> None:
    proposal = propose(make_appwrapper(), "default", SchedulingRules(), CREATED)
    assert known_defaults(proposal, clusters, surveys, of_hub) == expected


@pytest.mark.parametrize(
    ("survey", "classes", "expected"),
    [
        (DefaultsSurvey(None, {}), (), None),
        (DefaultsSurvey({}, None), (), NO_DEFAULTS),
        (DefaultsSurvey({}, None), ("kata",), None),
        (
            DefaultsSurvey({}, {"kata": {"cpu": "1"}}),
            ("kata", "none"),
            PodDefaults({}, {"kata": {"cpu": "1"}}),
        ),
        (DefaultsSurvey({"other": {"cpu": "1"}}, {}, has_more=True), (), None),
        (DefaultsSurvey({"team": {"cpu": "1"}}, {}, has_more=True), (), PodDefaults({"cpu": "1"})),
    ],
)
def test_survey_knows_defaults_or_says_that_it_does_not(
    survey: DefaultsSurvey, classes: tuple[str, ...], expected: PodDefaults | None
) -> None:
    assert survey.read("team", classes) == expected
