"""`dispatcher queues`: the trees, one queue with its settings, and how a queue is stopped."""

from __future__ import annotations

import json

import pytest

from dispatcher.cli.operators.queue_tree import NO_QUEUES, QueueList, as_tree, as_wide_tree, settings_of
from tests.commands import Ran, Run, runner
from tests.fakes import FakeApiServer, Reply, answer, refusal, text
from tests.unit.cli.wire import Json, merged, writes

QUEUES = "/apis/dispatcher.codeflare.dev/v1alpha1/dispatchqueues"
GPU = "nvidia.com/gpu"


def queue(name: str, *, status: Json | None = None, **spec: object) -> Json:
    """A DispatchQueue as an API server has it."""
    return {
        "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
        "kind": "DispatchQueue",
        "metadata": {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": "2026-11-20T08:58:06Z"},
        "spec": spec,
        **({"status": status} if status else {}),
    }


def listing(*found: Json) -> Json:
    return {"kind": "DispatchQueueList", "metadata": {"resourceVersion": "7"}, "items": list(found)}


def amounts(nominal: int, used: int, borrowed: int, available: int, **more: object) -> Json:
    fields = {"nominal": nominal, "used": used, "borrowed": borrowed, "available": available}
    written: Json = {key: {GPU: str(value), "cpu": "0"} for key, value in fields.items()}
    return {**written, "state": "Active", "running": 1, "pending": 0, **more}


def gpus(nominal: int, **limits: object) -> Json:
    return {GPU: {"nominalQuota": nominal, **limits}}


RESEARCH = [
    queue(
        "research",
        sharing="DominantShare",
        queueingStrategy="StrictFIFO",
        status=amounts(14, 12, 0, 2, running=3, pending=2, share=0),
    ),
    queue("vision", parent="research", resources=gpus(8), status=amounts(8, 3, 0, 2, share=0)),
    queue("speech", parent="research", weight=2, status=amounts(6, 9, 3, 2, running=2, pending=2, share=84)),
    queue(
        "asr",
        parent="speech",
        resources={**gpus(6), "cpu": {"nominalQuota": 0}},
        weight=0,
        stopPolicy="Hold",
        status=amounts(6, 9, 3, 2, running=2, pending=2, state="Hold"),
    ),
]
BATCH = [
    queue("batch", sharing="Division", status={"state": "Active", "running": 0, "pending": 4}),
    queue("night", parent="batch", resources={"memory": {"nominalQuota": "1Ti"}, "cpu": {"nominalQuota": 4}}),
]
BATCH[1]["status"] = {
    **amounts(0, 0, 0, 0),
    **{key: {"cpu": "4", "memory": "1Ti"} for key in ("nominal", "fairShare")},
    **{key: {"cpu": "1500m", "memory": "3Gi"} for key in ("used", "borrowed")},
    "available": {},
}
WHY = "its parent, queue nobody, does not exist"
LOST = queue(
    "lost",
    parent="nobody",
    resources=gpus(1),
    status={
        "state": "ParentNotFound",
        "running": 1,
        "pending": 0,
        "conditions": [{"type": "Valid", "status": "False", "reason": "ParentNotFound", "message": WHY}],
    },
)
ALL = listing(LOST, *BATCH, *RESEARCH, queue("new", status=None))


@pytest.fixture
def ask(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher queues …` on the hub, without a database."""
    return runner(monkeypatch, capsys, "queues")


def test_tree_is_a_line_for_each_queue_below_its_parent() -> None:
    assert as_tree(QueueList.of(ALL), None).splitlines() == [
        "QUEUE     RESOURCE        NOMINAL  USED   BORROWED  AVAILABLE  RUNNING  PENDING  SHARE     STATE",
        "batch     cpu             -        -      -         -          0        4        -         Active",
        "  night   cpu             4        1500m  1500m     no limit   1        0        4         Active",
        "new       -               -        -      -         -          -        -        -         -",
        "research  nvidia.com/gpu  14       12     0         2          3        2        0         Active",
        "  speech  nvidia.com/gpu  6        9      3         2          2        2        84        Active",
        "    asr   nvidia.com/gpu  6        9      3         2          2        2        infinite  Hold",
        "  vision  nvidia.com/gpu  8        3      0         2          1        0        0         Active",
        "lost      -               -        -      -         -          1        0        -         ParentNotFound",
    ]


@pytest.mark.parametrize(
    ("declared", "written", "state"),
    [
        ({"stopPolicy": "Hold"}, "Active", "Hold"),
        ({"stopPolicy": "HoldAndDrain"}, "Hold", "HoldAndDrain"),
        ({}, "Hold", "Active"),
        ({"parent": "nobody"}, "Active", "Active"),
        ({"stopPolicy": "Hold"}, "ParentNotFound", "ParentNotFound"),
    ],
)
def test_state_follows_the_stop_policy_before_the_dispatcher_writes_it(
    declared: Json, written: str, state: str
) -> None:
    found = QueueList.of(listing(queue("q", status={"state": written}, **declared)))
    assert found.status("q")["state"] == state


def test_wide_tree_has_the_other_resources_and_the_problem_of_each_queue() -> None:
    lines = as_wide_tree(QueueList.of(ALL)).splitlines()
    at = lines[0].index("SHARING")
    found = {line.split()[0]: line[at:].split("  ") for line in lines[1:]}
    assert [each.strip() for each in found["night"] if each] == ["Division", "1", "memory 3Gi/1Ti", "-"]
    assert [each.strip() for each in found["speech"] if each] == ["DominantShare", "2", "cpu 0/0", "-"]
    assert [each.strip() for each in found["lost"] if each] == ["-", "-", "-", WHY]


@pytest.mark.parametrize(
    ("resources", "dearest"),
    [
        (["cpu", "memory", GPU, "amd.com/gpu"], GPU),
        (["cpu", "example.org/b", "example.org/a"], "example.org/a"),
        (["pods", "memory", "cpu"], "cpu"),
        (["pods", "memory"], "memory"),
        (["pods"], "pods"),
    ],
)
def test_row_of_a_queue_is_about_the_dearest_resource_of_its_tree(resources: list[str], dearest: str) -> None:
    found = listing(
        queue("root"),
        *(
            queue(f"q{number}", parent="root", resources={each: {"nominalQuota": 1}})
            for number, each in enumerate(resources)
        ),
    )
    lines = as_tree(QueueList.of(found), None).splitlines()[1:]
    assert {line.split()[1] for line in lines} == {dearest}


def test_deep_tree_is_not_indented_for_ever() -> None:
    found = listing(queue("q0"), *(queue(f"q{each}", parent=f"q{each - 1}") for each in range(1, 300)))
    lines = as_tree(QueueList.of(found), None).splitlines()
    assert len(lines) == 301
    assert lines[-1].startswith(" " * 40 + "q299 ")


async def test_trees_are_those_of_the_hub(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(ALL))
    ran = await ask()
    assert (ran.code, ran.err, len(ran.out.splitlines())) == (0, "", 9)
    assert (await ask("-o", "wide")).out.splitlines()[0].endswith("WHY")
    assert writes(hub) == []


async def test_json_is_what_the_hub_gave(ask: Run, hub: FakeApiServer) -> None:
    managed = {**RESEARCH[0], "metadata": {**RESEARCH[0]["metadata"], "managedFields": [{}]}}
    hub.on("GET", QUEUES, answer(listing(managed)))
    assert json.loads((await ask("-o", "json")).out) == listing(RESEARCH[0])


async def test_no_queues_means_one_without_limits(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing()))
    assert await ask() == Ran(0, f"{NO_QUEUES}\n")


@pytest.mark.parametrize("asked", [[], ["team"], ["hold", "team"]], ids=["all", "one", "hold"])
async def test_queues_on_a_hub_without_dispatchqueues_names_the_file_to_apply(
    ask: Run, hub: FakeApiServer, asked: list[str]
) -> None:
    hub.on("GET", QUEUES, text("404 page not found\n", 404))
    assert await ask(*asked) == Ran(
        1,
        "",
        "dispatcher: the hub does not know DispatchQueues yet: kubectl apply -f "
        "crds/dispatcher.codeflare.dev_dispatchqueues.yaml. Without them, all AppWrappers are in the queue default, "
        "which has no limits\n",
    )


async def test_hub_that_says_no_is_quoted(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, refusal(403, "Forbidden", "dispatchqueues is forbidden: User me"))
    assert await ask() == Ran(
        1, "", "dispatcher: the hub does not allow it: dispatchqueues is forbidden: User me\n"
    )


async def test_hub_that_does_not_answer_is_asked_again_while_it_is_watched(
    ask: Run, hub: FakeApiServer
) -> None:
    hub.on(
        "GET",
        QUEUES,
        answer(listing(RESEARCH[0])),
        refusal(500, "InternalError"),
        refusal(403, "Forbidden", "no"),
    )
    ran = await ask("--watch", "--every", "0.1")
    assert (ran.code, ran.err) == (1, "dispatcher: the hub does not allow it: no\n")
    first, again = ran.out.split("QUEUE ")[1:]
    assert again.startswith(first)
    assert f"the hub does not answer: {hub.url} answers 500" in again


@pytest.mark.parametrize(
    "asked", [[], ["research"], ["hold", "research"], ["drain", "a"], ["resume", "a"]], ids=str
)
async def test_context_chooses_the_hub(ask: Run, hub: FakeApiServer, asked: list[str]) -> None:
    ran = await ask(*asked, "--context", "nowhere")
    assert (ran.code, ran.out, hub.asked) == (1, "", [])
    assert "has no context 'nowhere': choose one with --context, of: hub" in ran.err


async def test_options_before_the_name_are_refused(ask: Run) -> None:
    for asked in (["-o", "json", "team"], ["--kubeconfig", "other", "hold", "team"]):
        ran = await ask(*asked)
        assert (ran.code, ran.out) == (2, "")
        assert "give options at the end, such as: dispatcher queues NAME -o json" in ran.err


# --- one queue -----------------------------------------------------------------------------------------------

DEEP = [
    queue(
        "company",
        queueingStrategy="StrictFIFO",
        maxPreemptions=0,
        clusterSelector="gpu=h100",
        stopPolicy="Hold",
        preemptibleBelow=100,
        elastic="First",
        approvals=["budget", "data-staged"],
        status=amounts(8, 0, 0, 8),
    ),
    queue("research", parent="company", minRuntimeSeconds=90, resources=gpus(8, lendingLimit=2)),
    queue(
        "team",
        parent="research",
        sharing="Division",
        weight="1.5",
        order="Priority",
        clusterSelector="area in (eu)",
        resources=gpus(4, borrowingLimit=2),
        preemption={"reclaim": "Any", "whileBorrowing": {"maxPriority": 7}},
        status={
            **amounts(4, 3, 0, 5),
            "state": "Hold",
            "conditions": [
                {"type": "Valid", "status": "True"},
                {
                    "type": "Stopped",
                    "status": "True",
                    "message": "queue company above it has the stopPolicy Hold",
                },
            ],
        },
    ),
]


def test_each_setting_says_where_it_comes_from() -> None:
    found = {each.name: each[1:] for each in settings_of(QueueList.of(listing(*DEEP)), "team")}
    selectors = [
        each[1:]
        for each in settings_of(QueueList.of(listing(*DEEP)), "team")
        if each.name == "clusterSelector"
    ]
    assert selectors == [("area in (eu)", "itself"), ("gpu in (h100)", "company")]
    del found["clusterSelector"]
    assert found == {
        "parent": ("research", "itself"),
        "sharing": ("Priority (no effect here)", "default"),
        "queueingStrategy": ("StrictFIFO", "company"),
        "starvationBoundSeconds": ("", "dispatcher"),
        "provisioning": ("none", "default"),
        "minRuntimeSeconds": ("90", "research"),
        "expectedRuntimeSeconds": ("unknown", "default"),
        "maxPreemptions": ("no bound", "company"),
        "preemptibleBelow": ("100", "company"),
        "elastic": ("First", "company"),
        "approvals": ("budget, data-staged", "company"),
        "namespaceSelector": ("every namespace", "default"),
        "stopPolicy": ("Hold", "company"),
        "weight": ("1.5 (no effect here)", "itself"),
        "priority": ("0", "default"),
        "order": ("Priority", "itself"),
        "preemption.withinQueue": ("Never", "default"),
        "preemption.reclaim": ("Any", "itself"),
        "preemption.whileBorrowing": ("lower priorities up to 7", "itself"),
    }


def test_settings_of_a_queue_that_sets_none_are_the_defaults() -> None:
    found = settings_of(QueueList.of(listing(queue("team"))), "team")
    assert {each.origin for each in found} == {"default", "dispatcher", "itself"}
    assert [each.name for each in found if each.origin == "itself"] == ["parent"]
    assert next(each.value for each in found if each.name == "maxPreemptions") == "5"


async def test_one_queue_is_shown_with_its_settings_and_amounts(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing(*DEEP)))
    ran = await ask("team")
    assert ran == Ran(
        0,
        (await ask("show", "team")).out,
        "Without a database (DISPATCHER_DATABASE_URL or --database-url), its gangs are not shown.\n",
    )
    facts, settings, resources = ran.out.rstrip("\n").split("\n\n")
    assert facts.splitlines() == [
        "team",
        "  State:    Hold",
        "  Path:     company > research > team",
        "  Running:  1",
        "  Pending:  0",
        "  Stopped:  queue company above it has the stopPolicy Hold",
    ]
    assert settings.splitlines()[:2] == [
        "Settings:",
        "SETTING                    VALUE                      FROM",
    ]
    assert "minRuntimeSeconds          90                         research" in settings.splitlines()
    assert resources.splitlines() == [
        "Resources:",
        "RESOURCE        NOMINAL  BORROWING LIMIT  LENDING LIMIT  USED  BORROWED  AVAILABLE  FAIR SHARE",
        "nvidia.com/gpu  4        2                no limit       3     0         5          -",
    ]


async def test_one_queue_as_json_is_the_object_with_its_settings(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing(*DEEP)))
    found = json.loads((await ask("team", "-o", "json")).out)
    assert (found["queue"], found["gangs"]) == (DEEP[2], None)
    assert {"name": "minRuntimeSeconds", "value": "90", "origin": "research"} in found["settings"]


async def test_queue_that_is_not_valid_says_why(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing(LOST)))
    assert (await ask("lost")).out.splitlines() == [
        "lost",
        "  State:    ParentNotFound",
        "  Running:  1",
        "  Pending:  0",
        f"  Valid:    {WHY}",
    ]
    assert json.loads((await ask("lost", "-o", "json")).out)["settings"] is None


@pytest.mark.parametrize("command", [[], ["show"], ["hold"], ["drain"], ["resume"]])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "there is no DispatchQueue nobody. See those there are with: dispatcher queues"),
        ("a/../b", "there is no DispatchQueue a/../b. See those there are with: dispatcher queues"),
        (
            "default",
            "the queue default is not declared: it exists without a DispatchQueue, and has no limits. "
            "Declare it with kubectl apply to give it settings",
        ),
    ],
)
async def test_queue_that_is_not_declared(
    ask: Run, hub: FakeApiServer, command: list[str], name: str, said: str
) -> None:
    hub.on("GET", QUEUES, answer(ALL))
    assert await ask(*command, name) == Ran(1, "", f"dispatcher: {said}\n")
    assert writes(hub) == []


# --- stopping ------------------------------------------------------------------------------------------------

OPEN = "open: gangs may be dispatched from it"
HELD = "held: nothing new is dispatched from it, and what runs goes on"
DRAINED = "being drained: nothing new is dispatched from it, and what runs is evicted and waits in it"


@pytest.mark.parametrize(
    ("command", "before", "sent", "said"),
    [
        pytest.param("hold", {}, "Hold", HELD, id="hold"),
        pytest.param("hold", {"stopPolicy": "Hold"}, ..., f"already {HELD}", id="hold-again"),
        pytest.param("hold", {"stopPolicy": "HoldAndDrain"}, "Hold", HELD, id="stop-draining"),
        pytest.param("drain", {"stopPolicy": "Hold"}, "HoldAndDrain", DRAINED, id="drain"),
        pytest.param("resume", {"stopPolicy": "HoldAndDrain"}, None, OPEN, id="resume"),
        pytest.param("resume", {"stopPolicy": "None"}, ..., f"already {OPEN}", id="resume-again"),
    ],
)
async def test_stopping_and_resuming(
    ask: Run, hub: FakeApiServer, command: str, before: Json, sent: object, said: str
) -> None:
    found = queue("team", **before)
    hub.on("GET", QUEUES, answer(listing(found)))
    hub.on("PATCH", f"{QUEUES}/team", merged(found))
    assert await ask(command, "team") == Ran(0, f"team is {said}\n")
    patch = {"metadata": {"uid": "uid-of-team"}, "spec": {"stopPolicy": sent}}
    assert writes(hub) == ([] if sent is ... else [("PATCH", f"{QUEUES}/team", patch)])


async def test_resume_names_a_queue_above_that_is_still_stopped(ask: Run, hub: FakeApiServer) -> None:
    found = queue("team", parent="company", stopPolicy="Hold")
    hub.on("GET", QUEUES, answer(listing(queue("company", stopPolicy="HoldAndDrain"), found)))
    hub.on("PATCH", f"{QUEUES}/team", merged(found))
    assert await ask("resume", "team") == Ran(
        0,
        f"team is {OPEN}\n",
        "Queue company above it has the stopPolicy HoldAndDrain, which counts for team, too.\n",
    )


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            refusal(403, "Forbidden", 'dispatchqueues "team" is forbidden'),
            'the hub does not allow it: dispatchqueues "team" is forbidden',
        ),
        (refusal(404, "NotFound", '"team" not found'), "the DispatchQueue team was deleted meanwhile"),
        (
            refusal(422, "Invalid", "metadata.uid: field is immutable"),
            "the hub has seen another change at the same time; try again: metadata.uid: field is immutable",
        ),
    ],
)
async def test_queue_that_may_not_be_changed(ask: Run, hub: FakeApiServer, reply: Reply, said: str) -> None:
    hub.on("GET", QUEUES, answer(listing(queue("team"))))
    hub.on("PATCH", f"{QUEUES}/team", reply)
    assert await ask("hold", "team") == Ran(1, "", f"dispatcher: {said}\n")


async def test_queue_with_the_name_of_a_command_can_be_shown(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing(queue("hold"))))
    assert (await ask("show", "hold")).out.startswith("hold\n")
    assert (await ask("hold")).code == 2


# --- MCAD's trees ----------------------------------------------------------------------------------------------

SUBTREES = "/apis/quota.codeflare.dev/v1alpha1/quotasubtrees"
OLD_SUBTREES = "/apis/ibm.com/v1/quotasubtrees"


def subtree(tree: str, parent: str | None, **children: Json) -> Json:
    """A QuotaSubtree as a list of an API server has it; children are `quotas` by name."""
    metadata = {"namespace": "kube-system", "name": f"{tree}-{parent}", "labels": {"tree": tree}}
    nodes = [{"name": name, "quotas": quotas} for name, quotas in children.items()]
    return {"metadata": metadata, "spec": {"parent": parent, "children": nodes}}


CONTEXT = [
    subtree("context", None, root={"requests": {"cpu": 4}}),
    subtree(
        "context",
        "root",
        gold={"requests": {"cpu": "2500m"}},
        bronze={"requests": {"cpu": 1}, "hardLimit": True},
        odd={"requests": {"cpu": "much"}},
    ),
]


async def test_nodes_of_mcads_trees_are_shown_with_their_quota(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing()))
    hub.on("GET", SUBTREES, answer({"items": CONTEXT}))
    hub.on("GET", OLD_SUBTREES, answer({"items": [subtree("old", "lost", silver={})]}))
    ran = await ask()
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert [line.split() for line in lines[1:5]] == [
        ["context/root", "cpu", "4", *"-" * 6, "Active"],
        ["context/gold", "cpu", "2500m", *"-" * 6, "Active"],
        ["context/bronze", "cpu", "1", *"-" * 6, "Active"],
        ["old/silver", *"-" * 8, "ParentNotFound"],
    ]
    assert lines[5] == ""
    assert lines[6].startswith(
        "QuotaSubtree kube-system/context-root: spec.children[2].quotas.requests.cpu: "
    )
    assert len(lines) == 7


async def test_trees_that_may_not_be_listed_are_named(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing(*RESEARCH)))
    hub.on("GET", SUBTREES, refusal(403, "Forbidden", "no"))
    ran = await ask()
    assert (ran.code, len(ran.out.splitlines())) == (0, 5)
    assert ran.err == "The hub does not allow to list QuotaSubtrees: MCAD's trees are not shown.\n"


async def test_one_node_has_the_settings_that_mcads_rules_give_it(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing()))
    hub.on("GET", SUBTREES, answer({"items": CONTEXT}))
    shown = [line.split() for line in (await ask("context/bronze")).out.splitlines()]
    assert ["preemption.reclaim", "Any", "MCAD"] in shown
    assert ["parent", "context/root", "itself"] in shown
    assert ["cpu", "1", "0", "no", "limit", *"-" * 4] in shown
    told = json.loads((await ask("context/bronze", "-o", "json")).out)
    assert (told["queue"], told["gangs"]) == (None, None)
    assert {"name": "preemption.withinQueue", "value": "LowerPriority", "origin": "MCAD"} in told["settings"]


async def test_node_cannot_be_stopped(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", QUEUES, answer(listing()))
    ran = await ask("hold", "context/bronze")
    assert (ran.code, ran.out) == (1, "")
    assert "A node of MCAD's trees has no stopPolicy: give it requests of 0 with hardLimit" in ran.err
    assert writes(hub) == []
