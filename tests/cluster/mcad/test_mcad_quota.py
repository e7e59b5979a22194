"""MCAD's suites about quota trees: quota-forest, quota-errors and borrowing, step by step.

The objects are in `quota/`, with MCAD's names, labels and amounts. Two steps differ: what slept 30 seconds runs for
one, and nothing names its namespace, which is another one in each test. QuotaSubtrees count for the whole cluster.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.names import QUEUE_LABEL
from dispatcher.kube.client import MERGE_PATCH
from testbed.plane import Plane
from testbed.stand_in import Api
from tests.cluster.definitions import create_once_served, optional_definitions, optional_kinds_of, uninstall
from tests.cluster.dispatch_queues import Declare
from tests.cluster.lives import breaking_job
from tests.cluster.manifests import appwrapper, changed, item, job
from tests.cluster.mcad.suite import AS_MCAD, OFTEN, Suite, conditions
from tests.cluster.outcomes import delete_all, rows
from tests.cluster.test_explain import until_settled
from tests.cluster.world import World
from tests.commands import Run, runner

Json = dict[str, Any]

FILES = Path(__file__).parent / "quota"
CURRENT = "quota.codeflare.dev/v1alpha1"
OLDER = "ibm.com/v1"
PATH = "/apis/{}/namespaces/kube-system/quotasubtrees"
OF_QUOTA = ("True", "quota limit exceeded", "Insufficient quota and/or resources to dispatch AppWrapper.")
GOLD_LOW = "job-gold-lo-pri-1replica"
GOLD_HIGH = "job-gold-high-pri-1replica"
BAD = "job-bad-quota-id-10replica"
FIRST_BRONZE = "job-1-bronze-1replica"
SECOND_BRONZE = "job-2-bronze-1replica"
SILVER = "deployment-silver-lo-pri-1replica"
NO_BRONZE = "quota of quota_context/bronze: cpu: needs 900m, 0 available; nominal 900m, 900m used"
TOGETHER = """
SELECT DISTINCT earlier.name AS earlier, later.name AS later
  FROM history.attempt_history AS earlier JOIN history.attempt_history AS later
  ON later.decided_at > earlier.decided_at AND later.decided_at < coalesce(earlier.ended_at, 'infinity')
"""
BRONZE = {"quota_context": "bronze", "quota_service": "gold"}


class Trees:
    """MCAD's two trees on the cluster. Tests ask for them before `suite`, whose dispatcher then starts with them."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(self, version: str) -> None:
        for each in documents("trees"):
            await create_once_served(self._api, PATH.format(version), {**each, "apiVersion": version})

    async def delete(self) -> None:
        """Delete their kind, and thereby all that there are."""
        for crd in optional_definitions():
            await uninstall(self._api, crd)


@pytest.fixture
async def trees(request: pytest.FixtureRequest, plane: Plane) -> AsyncIterator[Trees]:
    """MCAD's two trees, in the current version of QuotaSubtree or in the test's; their kind goes with them."""
    async with trees_of(plane, getattr(request, "param", CURRENT)) as found:
        yield found


@asynccontextmanager
async def trees_of(plane: Plane, version: str) -> AsyncIterator[Trees]:
    async with optional_kinds_of(plane.kubeconfig) as api:
        found = Trees(api)
        await found.create(version)
        yield found


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` on the hub and the queue of this world."""
    monkeypatch.setenv("KUBECONFIG", str(world.plane.kubeconfig))
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", world.database_url)
    return runner(monkeypatch, capsys)


def documents(file: str) -> list[Json]:
    return list(yaml.safe_load_all((FILES / f"{file}.yaml").read_text()))


def wrappers(file: str) -> dict[str, Json]:
    """The AppWrappers of a suite by name."""
    return {each["metadata"]["name"]: each for each in documents(file)}


def bronze(name: str, wrapped: Json | None = None, cpu: str = "900m", **fields: Any) -> Json:  # noqa: ANN401
    """An AppWrapper of one pod in the node that may not borrow, all of whose quota it takes."""
    made = appwrapper(name, item(wrapped or job(name, cpu=cpu), **fields))
    return changed(made, "metadata.labels", BRONZE)


async def until_pending(suite: Suite, name: str, reason: str, message: str) -> None:
    """Return once it waits for this reason, and has no pods after some cycles more."""

    async def told() -> bool:
        found = (await suite.status(name)).get("waiting") or {}
        return (found.get("reason"), found.get("message")) == (reason, message)

    await suite.world.until(told, f"{name} waits: {reason}: {message}")
    await suite.stays_without_pods(name)
    assert await told()


async def queues(suite: Suite, name: str) -> list[str]:
    """The nodes in which it is charged, one in each tree."""
    # The name is the test's own.
    (row,) = await rows(suite.world, f"SELECT more_queues FROM appwrapper WHERE name = '{name}'")
    return list(row["more_queues"])


async def states(suite: Suite, *names: str) -> dict[str, str]:
    return {name: (await suite.status(name))["state"] for name in names}


async def until_runs(suite: Suite, name: str, pods: int = 1) -> None:
    """kuttl's assert: its state is Running, and its pods are there."""
    await suite.until_shown(name, "Running")
    await suite.until_ready(name, pods)


async def until_only_others_run(suite: Suite, name: str, before: set[str]) -> None:
    """Return when one pod of that name runs, and none of these is left."""

    async def look() -> bool:
        pods = await suite.pods(name)
        uids = {each["metadata"]["uid"] for each in pods}
        return [each["status"]["phase"] for each in pods] == ["Running"] and not before & uids

    await suite.world.until(look, f"only a new pod of {name} runs")


async def runs_alone(suite: Suite, name: str, *others: str) -> None:
    """It runs, and the quota that it holds is all that is used: so the others wait for all of it."""
    await until_runs(suite, name)
    for each in others:
        await until_pending(suite, each, "InsufficientQuota", NO_BRONZE)


async def charged_together(suite: Suite) -> list[tuple[str, str]]:
    """Who was dispatched, and before whom, while an earlier one still held its capacity: pairs of names."""
    return [(each["earlier"], each["later"]) for each in await rows(suite.world, TOGETHER)]


async def test_quota_forest(trees: Trees, suite: Suite) -> None:
    """quota-forest, 04 to 08: two trees at once."""
    forest = wrappers("forest")

    await suite.apply(forest[GOLD_LOW])
    await until_runs(suite, GOLD_LOW)

    await suite.apply(forest[BAD])
    await until_pending(suite, BAD, "QueueNotFound", "there is no queue quota_context/context-root2")
    assert await queues(suite, BAD) == ["quota_context/context-root2", "quota_service/service-root2"]
    await until_runs(suite, GOLD_LOW)

    await suite.apply(forest[GOLD_HIGH])
    await until_runs(suite, GOLD_HIGH)
    short = "cpu: needs 600m, 475m available; nominal 1075m, 600m used"
    await until_pending(suite, GOLD_LOW, "InsufficientQuota", f"quota of quota_context/gold: {short}")
    shown = conditions(await suite.status(GOLD_LOW))
    assert shown["PreemptCandidate"][:2] == ("True", "PriorityInQueue")
    preemptor = f"/{GOLD_HIGH} (queues default, quota_context/gold, quota_service/gold, priority 1000): "
    assert preemptor in shown["PreemptCandidate"][2]
    assert shown["Backoff"] == ("True", "PreemptionTriggered", shown["PreemptCandidate"][2])

    await suite.apply(forest[FIRST_BRONZE])
    await until_runs(suite, FIRST_BRONZE)

    await suite.apply(forest[SECOND_BRONZE])
    short = "cpu: needs 400m, 75m available; nominal 900m, 400m used"
    await until_pending(suite, SECOND_BRONZE, "InsufficientQuota", f"quota of quota_context/bronze: {short}")
    assert conditions(await suite.status(SECOND_BRONZE))["Backoff"] == OF_QUOTA
    await until_runs(suite, FIRST_BRONZE)
    await until_runs(suite, GOLD_HIGH)
    for name in (BAD, GOLD_LOW):
        assert ((await suite.status(name))["state"], await suite.pods(name)) == ("Pending", [])


async def test_quota_forest_jobs(trees: Trees, suite: Suite) -> None:
    """quota-forest, 09 to 11: two that take all of bronze, and then those that name no node of any tree."""
    forest = wrappers("forest")

    await suite.apply(forest["my-job-1"], forest["my-job-2"])
    for name in ("my-job-1", "my-job-2"):
        await suite.until_shown(name, "Completed")
    assert await charged_together(suite) == []

    for name in ("job-without-quota", "job-with-labels-no-quota"):
        await suite.apply(forest[name])
        await suite.until_shown(name, "Completed")
        assert await queues(suite, name) == ["quota_context/default", "quota_service/default"]


async def test_quota_errors(trees: Trees, suite: Suite) -> None:
    """quota-errors, 03 to 05: deleted and applied again at once; then one that needs all that the first held."""
    manifests = [wrappers("errors")[SILVER], bronze("all-of-bronze")]
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        await suite.apply(manifest)
        await until_runs(suite, name)
        before = {each["metadata"]["uid"] for each in await suite.pods(name)}

        await suite.world.delete(name)
        await suite.apply(manifest)

        await suite.until_shown(name, "Running")
        await until_only_others_run(suite, name, before)
    # Two of the small one have quota at a time; of the large one, the second waited for the pods of the first.
    assert ("all-of-bronze", "all-of-bronze") not in await charged_together(suite)


@pytest.mark.parametrize("trees", [OLDER], indirect=True)
async def test_borrowing(trees: Trees, suite: Suite) -> None:
    """borrowing, 03 and 04: silver borrows gold's GPUs, and gold takes them back."""
    suites = wrappers("borrowing")

    await suite.apply(suites["my-job-1"])
    await until_runs(suite, "my-job-1", 2)

    await suite.apply(suites["my-job-2"])
    await until_runs(suite, "my-job-2")
    short = (
        "cpu: needs 1, 575m available; nominal 1075m, 0 used; "
        "nvidia.com/gpu: needs 16, 8 available; nominal 8, 0 used"
    )
    await until_pending(suite, "my-job-1", "InsufficientQuota", f"quota of quota_context/silver: {short}")
    shown = conditions(await suite.status("my-job-1"))
    assert shown["PreemptCandidate"][:2] == ("True", "QuotaReclaimed")
    assert shown["Backoff"] == ("True", "PreemptionTriggered", shown["PreemptCandidate"][2])

    await suite.world.delete("my-job-2")
    await until_runs(suite, "my-job-1", 2)


async def test_trees_count_as_soon_as_they_are_there(suite: Suite, plane: Plane) -> None:
    """deployment-03: their kind and they come while the dispatcher runs."""
    await suite.apply(appwrapper("shows-trees", item(job("shows-trees")), suspend=True))
    await suite.world.until_state("shows-trees", "Suspended")
    assert await queues(suite, "shows-trees") == []

    async def in_trees() -> bool:
        return await queues(suite, "shows-trees") == ["quota_context/default", "quota_service/default"]

    async with trees_of(plane, CURRENT):
        await suite.world.until(in_trees, "the dispatcher knows the trees")
        await suite.apply(bronze("my-job-3"), bronze("waits"))
        await runs_alone(suite, "my-job-3", "waits")


async def test_node_with_a_hard_limit_does_not_borrow_what_others_may(trees: Trees, suite: Suite) -> None:
    """Silver gets more memory than its own; bronze gets no more cpu than its own, and is told so."""
    await suite.apply(bronze("beyond", cpu="950m"))
    most = "quota of quota_context/bronze: cpu: needs 950m, at most 900m is ever available"
    await until_pending(suite, "beyond", "LargerThanQuota", most)
    assert conditions(await suite.status("beyond"))["Backoff"] == OF_QUOTA

    wrapped = job("borrows")
    container = wrapped["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"] = {"cpu": "950m", "memory": "450Mi"}
    labels = {"quota_context": "silver", "quota_service": "gold"}
    await suite.apply(changed(appwrapper("borrows", item(wrapped)), "metadata.labels", labels))
    await until_runs(suite, "borrows")


@pytest.mark.usefixtures("trees")
async def test_appwrappers_with_bad_quota_labels_wait_for_a_repair_and_block_no_other(suite: Suite) -> None:
    """A node that is in one tree only, a node with others below it, and an empty label."""
    labels = {
        "elsewhere": {"quota_context": "gold", "quota_service": "bronze"},
        "inner": {"quota_context": "gold", "quota_service": "service-root"},
        "empty": {"quota_context": "", "quota_service": "gold"},
    }
    for name, written in labels.items():
        await suite.apply(changed(bronze(name, cpu="100m"), "metadata.labels", written))
    await suite.apply(bronze("good", cpu="100m"))
    await until_runs(suite, "good")
    await until_pending(suite, "elsewhere", "QueueNotFound", "there is no queue quota_service/bronze")
    below = "queue quota_service/service-root has children: name one of the queues without any"
    await until_pending(suite, "inner", "QueueNotLeaf", below)
    await until_pending(suite, "empty", "QueueNotFound", "there is no queue quota_context/")

    await suite.world.merge("AppWrapper", "inner", {"metadata": {"labels": {"quota_service": "gold"}}})
    await until_runs(suite, "inner")


async def test_quota_of_a_gang_is_given_back_once_however_the_gang_ends(trees: Trees, suite: Suite) -> None:
    """Each takes all of bronze: the end of one lets the next run, and no other."""
    await suite.apply(
        bronze("completes", job("completes", cpu="900m", run_for="1s"), completionstatus="Complete")
    )
    await suite.apply(bronze("fails", breaking_job("fails")))
    names = ["is-deleted", "is-suspended", "outlives-a-restart", "is-last"]
    await suite.apply(*map(bronze, names))
    for name in ("completes", "fails"):
        await suite.until_shown(name, {"completes": "Completed", "fails": "Failed"}[name])

    await runs_alone(suite, *names)
    await suite.world.delete("is-deleted")
    await runs_alone(suite, *names[1:])
    await suite.world.merge("AppWrapper", "is-suspended", {"spec": {"suspend": True}})
    await runs_alone(suite, *names[2:])
    await suite.world.merge("AppWrapper", "is-suspended", {"spec": {"suspend": False}})
    await runs_alone(suite, "outlives-a-restart", "is-suspended", "is-last")
    await suite.restart()
    await runs_alone(suite, "outlives-a-restart", "is-suspended", "is-last")

    await delete_all(suite.world)
    await suite.apply(bronze("again"))
    await until_runs(suite, "again")
    assert await charged_together(suite) == []


async def test_answers_about_a_gang_in_trees_come_true(
    trees: Trees, world: World, declare: Declare, run: Run, tmp_path: Path
) -> None:
    """`would` knows the trees and the queue of the namespace, and `explain` the accounts of all trees."""
    await declare("team", resources={"cpu": {"nominalQuota": "950m"}})
    labels = {"metadata": {"labels": {QUEUE_LABEL: "team"}}}
    await world.client.patch(f"/api/v1/namespaces/{world.namespace}", labels, MERGE_PATCH)
    suite = Suite(world, await world.start_dispatcher(**OFTEN, **AS_MCAD, snapshot_seconds="0.1"))
    await suite.apply(bronze("holds"))
    await until_runs(suite, "holds")

    gold = {"quota_context": "gold", "quota_service": "gold"}
    asked = {
        "of-bronze": bronze("of-bronze", cpu="10m"),
        "of-team": changed(bronze("of-team", cpu="60m"), "metadata.labels", gold),
        "lost": changed(bronze("lost", cpu="10m"), "metadata.labels", {"quota_context": "lost"}),
    }
    messages = {
        "of-bronze": "quota of quota_context/bronze: cpu: needs 10m, 0 available; nominal 900m, 900m used",
        "of-team": "quota of team: cpu: needs 60m, 50m available; nominal 950m, 900m used",
        "lost": "there is no queue quota_context/lost",
    }
    await until_settled(world, 2)
    for name, manifest in asked.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(manifest))
        assert f"\n  {messages[name]}\n" in (await run("would", "-f", str(file), "-n", world.namespace)).out

    await suite.apply(*asked.values())
    for name, message in messages.items():
        assert (await world.until_state(name, "Backoff"))["waiting"]["message"] == message
    lines = (await run("explain", "of-bronze", "-n", world.namespace)).out.splitlines()
    accounts = [line.split() for line in lines[lines.index("") + 2 :][:5]]
    assert accounts == [
        ["team", "cpu", "950m", "900m", "0", "50m", "950m"],
        ["quota_context/bronze", "cpu", "900m", "900m", "0", "0", "900m"],
        ["quota_context/context-root", "cpu", "1075m", "900m", "0", "175m", "1075m"],
        ["quota_service/gold", "cpu", "1075m", "900m", "0", "175m", "1075m"],
        ["quota_service/service-root", "cpu", "1075m", "900m", "0", "175m", "1075m"],
    ]

    shown = [line.split() for line in (await run("queues")).out.splitlines()]
    assert ["quota_context/bronze", "nvidia.com/gpu", "8", "0", "0", "8", "1", "1", "-", "Active"] in shown
    told = json.loads((await run("queues", "quota_context/bronze", "-o", "json")).out)
    assert [each["name"] for each in told["gangs"]] == ["of-bronze"]
