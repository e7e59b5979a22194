"""`submit`: what it creates of a file, what it prints of the first decision, and how it refuses a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import Ran, Run, runner
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, watch
from tests.unit.cli.people.test_verbs import COLLECTION, FAILED, by_selector, listed, modified, named, train
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig, writes

Json = dict[str, Any]


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub that knows no other path than those that a test scripts."""
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher …` in the namespace team-a of the hub."""
    monkeypatch.delenv("DISPATCHER_KINDS_FILE", raising=False)
    use_kubeconfig(plain_kubeconfig(hub.url, "team-a"), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys)


async def test_submit_creates_in_the_namespace_of_the_context_and_waits(ask: Run, hub: FakeApiServer) -> None:
    hub.on("POST", COLLECTION, answer(train(), status=201))
    hub.on("GET", COLLECTION, listed(train()), watch(FAILED))
    manifest = {**train(), "metadata": {"name": "train"}}

    ran = await ask("submit", "-f", "-", "--wait", stdin=yaml.safe_dump(manifest))

    assert ran.code == 1
    assert ran.out.splitlines() == [
        "team-a/train submitted",
        "team-a/train not seen by a dispatcher yet",
        "team-a/train Failed on hub; exit 1",
    ]
    [sent] = hub.requests("POST", COLLECTION)
    assert (sent.body["metadata"], sent.query["fieldValidation"]) == (
        {"name": "train", "namespace": "team-a"},
        "Strict",
    )


async def test_submit_prints_the_warnings_of_the_hub(ask: Run, hub: FakeApiServer) -> None:
    hub.on("POST", COLLECTION, answer(train(), status=201, warning='policy: no \\"team\\" label'))
    hub.on("GET", COLLECTION, listed(train("Running", "hub")))

    assert await ask("submit", "-", stdin=yaml.safe_dump(train())) == Ran(
        0,
        "team-a/train submitted\nteam-a/train dispatched to hub\n",
        'team-a/train: warning: policy: no "team" label\n',
    )


SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"generateName": "r-"},
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}},
}


BESIDE = "not created: it makes no pods and is no AppWrapper; create it with kubectl apply"


@pytest.mark.parametrize(
    ("flags", "when", "said"),
    [
        ([], "now: no gang waits for it", "team-a/train submitted\nteam-a/train dispatched to hub\n"),
        (["--dry-run"], "before you submit", "team-a/train submitted (dry run)\n"),
    ],
    ids=["", "--dry-run"],
)
async def test_submit_leaves_objects_without_pods_to_kubectl_and_lists_them(
    ask: Run, hub: FakeApiServer, flags: list[str], when: str, said: str
) -> None:
    """What is printed is true when it is read: a submitted gang may start at once."""
    hub.on("POST", COLLECTION, answer(train(), status=201))
    hub.on("GET", COLLECTION, listed(train("Running", "hub")))

    assert await ask("submit", "-", *flags, stdin=yaml.safe_dump_all([SETTINGS, train(), ROLE])) == Ran(
        0,
        f"ConfigMap/settings {BESIDE} {when}\nClusterRole/r-* {BESIDE} {when}\n{said}",
        "",
    )
    [sent] = hub.requests("POST", COLLECTION)
    assert (len(writes(hub)), "dryRun" in sent.query) == (1, bool(flags))


async def test_submit_wraps_all_other_objects_of_a_file_as_one_gang(ask: Run, hub: FakeApiServer) -> None:
    hub.on("POST", COLLECTION, answer(train(), status=201))
    hub.on("GET", COLLECTION, listed(train("Running", "hub")))

    ran = await ask(
        "submit", "-", "--queue", "vision", "--priority", "-1", stdin=yaml.safe_dump_all([SETTINGS, JOB])
    )

    assert ran == Ran(
        0,
        "team-a/train submitted: ConfigMap/settings, Job/train\nteam-a/train dispatched to hub\n",
    )
    [sent] = hub.requests("POST", COLLECTION)
    assert (sent.body, sent.query["fieldValidation"]) == (
        {
            "apiVersion": "workload.codeflare.dev/v1beta1",
            "kind": "AppWrapper",
            "metadata": {
                "name": "train",
                "namespace": "team-a",
                "labels": {"dispatcher.codeflare.dev/queue": "vision"},
            },
            "spec": {
                "priority": -1,
                "resources": {"GenericItems": [{"generictemplate": each} for each in (SETTINGS, JOB)]},
            },
        },
        "Strict",
    )


@pytest.mark.parametrize(
    ("beside", "problem"),
    [
        ([SETTINGS], "<stdin>: no object makes pods"),
        (
            [
                SETTINGS,
                train(),
                {"apiVersion": "example.com/v1", "kind": "Simulation", "metadata": {"name": "s"}},
            ],
            "<stdin>: object 3 (Simulation): kind: no template says what the pods ask for of a",
        ),
    ],
    ids=["no pods", "kind that may make pods"],
)
async def test_submit_of_a_file_with_unknown_kinds_or_without_pods_is_refused(
    ask: Run, hub: FakeApiServer, beside: list[Json], problem: str
) -> None:
    ran = await ask("submit", "-", stdin=yaml.safe_dump_all(beside))

    assert (ran.code, problem in ran.err, writes(hub)) == (2, True, [])


def waits(reason: str, message: str, **told: object) -> Json:
    """The AppWrapper in the queue."""
    return train("Backoff", waiting={"reason": reason, "message": message, **told})


POSITION = {"position": 4, "queueLength": 9}
SHORT = waits("InsufficientResources", "cluster hub: nvidia.com/gpu: needs 4, 2 free")
PLACED = waits(
    "InsufficientResources",
    "cluster hub: nvidia.com/gpu: needs 4, 2 free",
    **POSITION,
    repair={"message": "it would be dispatched without sweep"},
)
TOO_LARGE = waits(
    "LargerThanCluster",
    "cluster hub: nvidia.com/gpus: needs 4, 0 in all of it; no node has nvidia.com/gpus; did you mean nvidia.com/gpu?",
)
NO_QUEUE = waits("QueueNotFound", "there is no queue vison")
NOT_YET = train("Queueing")
DISPATCHING = train("HeadOfLine", "hub", lifecyclePhase="Dispatching")
SAYS_NEVER = (
    "cannot run as it is: LargerThanCluster: cluster hub: nvidia.com/gpus: needs 4, 0 in all of it; no node has "
    "nvidia.com/gpus; did you mean nvidia.com/gpu?"
)
SAYS_POSITION = (
    "waits at position 4 of 9: InsufficientResources: cluster hub: nvidia.com/gpu: needs 4, 2 free"
)


@pytest.mark.parametrize(
    ("first", "changes", "code", "said"),
    [
        (train(), [DISPATCHING, train("Running", "hub")], 0, "dispatched to hub"),
        (train(), [NOT_YET, SHORT, PLACED], 0, SAYS_POSITION),
        (NOT_YET, [TOO_LARGE], 4, SAYS_NEVER),
        (NO_QUEUE, [], 4, "cannot run as it is: QueueNotFound: there is no queue vison"),
        (
            train(),
            [train("Failed", conditions=[{"type": "Failed", "message": "spec: names nothing"}])],
            4,
            "Failed; spec: names nothing",
        ),
        (train("Suspended"), [], 0, "is held: kubectl aw release queues it"),
        (
            waits("AwaitingApproval", "it lacks the approvals budget"),
            [],
            0,
            "waits: AwaitingApproval: it lacks the approvals budget",
        ),
        (train("Completed", "hub"), [], 0, "Completed on hub"),
    ],
    ids=["dispatched", "position", "too large", "no queue", "failed", "held", "approval", "completed"],
)
@pytest.mark.parametrize("flags", [[], ["--fail-if-never"]], ids=["", "--fail-if-never"])
async def test_submit_prints_the_first_decision(
    ask: Run, hub: FakeApiServer, first: Json, changes: list[Json], code: int, said: str, flags: list[str]
) -> None:
    hub.on("POST", COLLECTION, answer(train(), status=201))
    hub.on("GET", COLLECTION, listed(first), watch(*map(modified, changes), then=never))

    ran = await ask("submit", "-", *flags, stdin=yaml.safe_dump(train()))

    failed = said.startswith("Failed")
    assert ran == Ran(code if flags else int(failed), f"team-a/train submitted\nteam-a/train {said}\n")


MISSPELT_QUEUE = waits("QueueNotFound", "there is no queue vison", queue="vison")
QUEUES = "/apis/dispatcher.codeflare.dev/v1alpha1/dispatchqueues"


@pytest.mark.parametrize(
    ("queues", "hint"),
    [
        (answer({"items": [{"metadata": {"name": "speech"}}, {"metadata": {"name": "vision"}}]}), "vision"),
        (answer({"items": [{"metadata": {"name": "speech"}}]}), ""),
        (refusal(403, "Forbidden", "dispatchqueues is forbidden"), ""),
        (refusal(404, "NotFound"), ""),
        (refusal(500, "InternalError", "no etcd"), ""),
    ],
    ids=["similar", "no similar one", "not allowed", "not served", "error"],
)
async def test_submit_names_the_queue_that_is_meant_where_its_user_may_list_queues(
    ask: Run, hub: FakeApiServer, queues: Reply, hint: str
) -> None:
    hub.on("POST", COLLECTION, answer(named("a"), status=201), answer(named("b"), status=201))
    waiting = [{**MISSPELT_QUEUE, "metadata": named(name)["metadata"]} for name in "ab"]
    hub.on(
        "GET",
        COLLECTION,
        by_selector({name: (listed(each), never) for name, each in zip("ab", waiting, strict=True)}),
    )
    hub.on("GET", QUEUES, queues)

    ran = await ask("submit", "-", stdin=yaml.safe_dump_all([named("a"), named("b")]))

    said = "cannot run as it is: QueueNotFound: there is no queue vison"
    meant = f"; did you mean {hint}?" if hint else ""
    assert ran == Ran(
        0,
        f"team-a/a submitted\nteam-a/b submitted\nteam-a/a {said}{meant}\nteam-a/b {said}{meant}\n",
    )
    [asked] = hub.requests("GET", QUEUES)
    assert dict(asked.query) == {"limit": "200"}


async def test_submit_waits_for_the_position_no_longer_than_for_the_decision(
    ask: Run, hub: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.cli.people.submitting.SECONDS", 0.2)
    hub.on("POST", COLLECTION, answer(named("a"), status=201), answer(named("b"), status=201))
    late = waits("InsufficientResources", "cluster hub: cpu: needs 2, 1 free")
    hub.on("GET", COLLECTION, listed({**late, "metadata": named("a")["metadata"]}), never)
    hub.on("GET", f"{COLLECTION}/b", answer(named("b")))

    ran = await ask("submit", "-", stdin=yaml.safe_dump_all([named("a"), named("b")]))

    assert ran == Ran(
        0,
        "team-a/a submitted\n"
        "team-a/b submitted\n"
        "team-a/a waits: InsufficientResources: cluster hub: cpu: needs 2, 1 free\n"
        "team-a/b is not decided yet, after 0.2 s: kubectl aw show team-a/b shows its state\n",
    )


async def test_submit_without_the_right_to_look_prints_no_decision(ask: Run, hub: FakeApiServer) -> None:
    hub.on("POST", COLLECTION, answer(train(), status=201))
    hub.on("GET", COLLECTION, refusal(403, "Forbidden", "appwrappers is forbidden"))

    assert await ask("submit", "-", stdin=yaml.safe_dump(train())) == Ran(
        0,
        "team-a/train submitted\n",
        "team-a/train: the first decision is not known: appwrappers is forbidden\n",
    )


async def test_dry_run_of_a_submission_prints_no_decision(ask: Run, hub: FakeApiServer) -> None:
    hub.on("POST", COLLECTION, answer(train(), status=201))

    ran = await ask("submit", "-", "--dry-run", stdin=yaml.safe_dump(JOB))

    assert ran == Ran(0, "team-a/train submitted (dry run): Job/train\n")
    assert hub.requests("GET", COLLECTION) == []


OF_BATCH = {
    "resources": [
        {"name": "jobs", "kind": "Job", "namespaced": True},
        {"name": "jobs/status", "kind": "Job", "namespaced": True},
    ]
}
MISSPELT = (
    'Job in version "v1" cannot be handled as a Job: strict decoding error: unknown field "spec.paralellism"'
)
SCHEMA = {
    "components": {
        "schemas": {
            "Job": {
                "properties": {"spec": {"allOf": [{"$ref": "#/components/schemas/JobSpec"}]}},
                "x-kubernetes-group-version-kind": [{"group": "batch", "version": "v1", "kind": "Job"}],
            },
            "JobSpec": {"properties": {"parallelism": {}, "template": {}}},
        }
    }
}


def script_misspelt_job(hub: FakeApiServer) -> None:
    """The hub refuses the dry run of a Job with a misspelt field."""
    hub.on("GET", "/apis/batch/v1", answer(OF_BATCH))
    hub.on("POST", "/apis/batch/v1/namespaces/team-a/jobs", refusal(400, "BadRequest", MISSPELT))
    hub.on("GET", "/openapi/v3/apis/batch/v1", answer(SCHEMA))


async def test_misspelt_field_of_an_object_is_told_before_anything_is_created(
    ask: Run, hub: FakeApiServer
) -> None:
    script_misspelt_job(hub)

    assert await ask("submit", "-", stdin=yaml.safe_dump_all([SETTINGS, JOB])) == Ran(
        2,
        "",
        'dispatcher: team-a/train: Job/train: unknown field "spec.paralellism"; did you mean parallelism? Nothing was '
        "created\n",
    )
    [dry] = hub.requests("POST", "/apis/batch/v1/namespaces/team-a/jobs")
    assert dict(dry.query) == {"dryRun": "All", "fieldValidation": "Strict"}
    assert dry.body["metadata"] == {"name": "train", "namespace": "team-a"}


async def test_misspelt_field_in_an_appwrapper_is_a_warning(ask: Run, hub: FakeApiServer) -> None:
    script_misspelt_job(hub)
    hub.on("POST", COLLECTION, answer(train(), status=201))
    hub.on("GET", COLLECTION, listed(train("Running", "hub")))
    theirs = {**train(), "spec": {"resources": {"GenericItems": [{"generictemplate": JOB}]}}}

    ran = await ask("submit", "-", stdin=yaml.safe_dump(theirs))

    assert (ran.code, ran.err) == (
        0,
        'team-a/train: Job/train: warning: unknown field "spec.paralellism"; did you mean parallelism?\n',
    )


@pytest.mark.parametrize(
    "reply",
    [
        refusal(403, "Forbidden", "jobs is forbidden"),
        refusal(422, "Invalid", "Job is invalid: spec.template: Required value"),
        answer({"metadata": {"uid": "u"}}, status=201, warning="deprecated"),
        refusal(409, "AlreadyExists", "exists"),
    ],
    ids=["not allowed", "invalid", "valid", "exists"],
)
async def test_other_answers_to_the_dry_run_do_not_count(ask: Run, hub: FakeApiServer, reply: Reply) -> None:
    script_misspelt_job(hub)
    hub.on("POST", "/apis/batch/v1/namespaces/team-a/jobs", reply)
    hub.on("POST", COLLECTION, answer(train(), status=201))
    hub.on("GET", COLLECTION, listed(train("Running", "hub")))

    assert await ask("submit", "-", stdin=yaml.safe_dump(JOB)) == Ran(
        0, "team-a/train submitted: Job/train\nteam-a/train dispatched to hub\n"
    )


async def test_misspelt_field_of_the_appwrapper_itself_is_told_with_the_meant_one(
    ask: Run, hub: FakeApiServer
) -> None:
    problem = 'strict decoding error: unknown field "spec.prioriti"'
    hub.on("POST", COLLECTION, refusal(400, "BadRequest", problem))
    theirs = {**train(), "spec": {**train()["spec"], "prioriti": 3}}

    assert await ask("submit", "-", stdin=yaml.safe_dump(theirs)) == Ran(
        1,
        "",
        'dispatcher: the hub refuses team-a/train: unknown field "spec.prioriti"; did you mean priority? Nothing more '
        "was submitted\n",
    )


@pytest.mark.parametrize(
    ("slow", "quick", "code", "err"),
    [
        (never, "Failed", 1, "team-a/slow is not done after 1s: not seen by a dispatcher yet\n"),
        (never, "Completed", 124, "team-a/slow is not done after 1s: not seen by a dispatcher yet\n"),
        (watch({"type": "DELETED", "object": named("slow")}), "Completed", 1, "team-a/slow was deleted\n"),
        (watch(modified(named("slow", "Completed"))), "Completed", 0, ""),
    ],
    ids=["one fails and one is late", "one is late", "one is deleted", "all complete"],
)
async def test_submit_follows_all_at_once_and_ends_with_the_worst(
    ask: Run, hub: FakeApiServer, slow: Reply, quick: str, code: int, err: str
) -> None:
    hub.on("POST", COLLECTION, answer(named("slow"), status=201), answer(named("quick"), status=201))
    ends = watch(modified(named("quick", quick)))
    hub.on(
        "GET",
        COLLECTION,
        by_selector({"slow": (listed(named("slow")), slow), "quick": (listed(named("quick")), ends)}),
    )

    ran = await ask(
        "submit", "-", "--wait", "--timeout", "1s",
        stdin=yaml.safe_dump_all([named("slow"), named("quick")]),
    )  # fmt: skip

    assert (ran.code, ran.err) == (code, err)
    assert f"team-a/quick {quick} on hub" in ran.out.splitlines()


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}, "object 1 (Job): spec.template"),
        ({**train(), "apiVersion": "workload.codeflare.dev/v1beta3"}, "Write workload.codeflare.dev/v1beta1, workload"),
        (
            {**train(), "metadata": {"name": "train", "namespace": "team-b"}},
            "metadata.namespace: is team-b, which contradicts -n team-a. Leave one of them out.",
        ),
        ({**train(), "metadata": {}}, "object 1 (AppWrapper): metadata.name: is missing. Give it a name."),
        ({**train(), "spec": {}}, "object 1 (AppWrapper): spec: names nothing to create"),
    ],
)  # fmt: skip
async def test_file_with_a_wrong_object_submits_nothing(
    ask: Run, hub: FakeApiServer, manifest: Json, problem: str
) -> None:
    ran = await ask("submit", "-", "-n", "team-a", stdin=yaml.safe_dump(manifest))

    assert (ran.code, problem in ran.err) == (2, True)
    assert writes(hub) == []


async def test_submit_of_a_name_that_is_taken_says_what_to_do(ask: Run, hub: FakeApiServer) -> None:
    hub.on("POST", COLLECTION, refusal(409, "AlreadyExists", "exists"))

    ran = await ask("submit", "-", stdin=yaml.safe_dump(train()))

    assert ran == Ran(
        1,
        "",
        "dispatcher: team-a/train exists: nothing more was submitted. Delete it with kubectl aw cancel, or choose "
        "another name\n",
    )
