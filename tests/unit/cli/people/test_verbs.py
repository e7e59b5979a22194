"""`hold`, `release`, `priority`, `cancel`, `wait`, `submit`, `logs`: what they write, print, and end with."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dispatcher.__main__ import complete_kubectl_plugin
from dispatcher.cli.options import Goal
from dispatcher.cli.people.following import Wait, progress, wait_for
from tests.builders import make_appwrapper, make_metadata
from tests.commands import Ran, Run, runner
from tests.fakes import FakeApiServer, Reply, answer, hang_up, never, refusal, watch
from tests.unit.cli.wire import merged, plain_kubeconfig, use_kubeconfig, writes

Json = dict[str, Any]

COLLECTION = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers"
TRAIN = f"{COLLECTION}/train"
PODS = "/api/v1/namespaces/team-a/pods"
UID = {"metadata": {"uid": "uid-of-train"}}


def train(state: str = "", where: str = "", *, spec: Json | None = None, **status: object) -> Json:
    """The AppWrapper team-a/train; `state` is its queuejobstate."""
    same = {"Completed", "Failed", "RunningHoldCompletion"}
    coarse = state if state in same else "Running" if where else "Pending"
    told = {"queuejobstate": state, "state": coarse, **status} if state else {}
    return make_appwrapper(
        "train", spec=spec, status={**told, **({"cluster": where} if where else {})}, namespace="team-a"
    )


def named(name: str, state: str = "") -> Json:
    """The AppWrapper of that name; one with a state has a cluster."""
    found = train(state, "hub") if state else train()
    return {**found, "metadata": {**found["metadata"], "name": name, "uid": f"uid-of-{name}"}}


def by_selector(of: Mapping[str, tuple[Reply, Reply]]) -> Reply:
    """The list and the watch of each AppWrapper by its name."""

    async def reply(request: web.Request) -> web.StreamResponse:
        listed_reply, watched = of[request.query["fieldSelector"].removeprefix("metadata.name=")]
        return await (watched if "watch" in request.query else listed_reply)(request)

    return reply


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub with the AppWrapper train, which is queued."""
    async with FakeApiServer() as server:
        server.on("GET", TRAIN, answer(train("Queueing")))
        server.on("PATCH", TRAIN, merged(train("Queueing")))
        server.on("DELETE", TRAIN, answer({"status": "Success"}))
        server.on("GET", f"{COLLECTION}/gone", refusal(404, "NotFound"))
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher …` in the namespace team-a of the hub."""
    use_kubeconfig(plain_kubeconfig(hub.url, "team-a"), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("asked", "before", "said", "written"),
    [
        (["hold"], train("Queueing"), "held", [{**UID, "spec": {"suspend": True}}]),
        (["hold"], train("Suspended", spec={"suspend": True}), "is already held", []),
        (["hold", "--evict"], train("Running", "hub"), "held", [{**UID, "spec": {"suspend": True}}]),
        (["hold"], train("Completed", "hub"), "held", [{**UID, "spec": {"suspend": True}}]),
        (["release"], train("Suspended", spec={"suspend": True}), "released", [{**UID, "spec": {"suspend": False}}]),
        (["release"], train("Queueing"), "is not held", []),
        (["priority", "10"], train(), "has priority 10, before 0", [{**UID, "spec": {"priority": 10}}]),
        (["priority", "-5"], train(), "has priority -5, before 0", [{**UID, "spec": {"priority": -5}}]),
        (["priority", "3"], train(spec={"priority": 3}), "has priority 3 already", []),
    ],
)  # fmt: skip
async def test_verb_writes_the_spec_of_the_appwrapper_that_was_read(
    ask: Run, hub: FakeApiServer, asked: list[str], before: Json, said: str, written: list[Json]
) -> None:
    hub.on("GET", TRAIN, answer(before))

    ran = await ask(*asked, "team-a/train")

    assert ran == Ran(0, f"team-a/train {said}\n")
    assert writes(hub) == [("PATCH", TRAIN, each) for each in written]


async def test_misspelt_name_is_answered_with_the_similar_one(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", f"{COLLECTION}/trian", refusal(404, "NotFound"))
    hub.on("GET", COLLECTION, listed(named("other"), train()))

    assert await ask("hold", "trian") == Ran(
        1, "", "trian: there is no AppWrapper trian in namespace team-a; did you mean train?\n"
    )


async def test_hold_of_a_gang_that_is_dispatched_needs_a_flag(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", TRAIN, answer(train("Running", "east")))

    ran = await ask("hold", "train")

    assert ran == Ran(
        1,
        "",
        "train: team-a/train is dispatched to east, and to hold it deletes its objects. Nothing was changed; --evict "
        "does it\n",
    )
    assert writes(hub) == []


async def test_verb_goes_on_after_a_name_that_failed(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", f"{COLLECTION}/mine", refusal(403, "Forbidden", "appwrappers is forbidden"))

    ran = await ask("cancel", "gone", "mine", "team-a/train")

    assert ran == Ran(
        1,
        "team-a/train deleted\n",
        "gone: there is no AppWrapper gone in namespace team-a: see those there are with kubectl get aw -n team-a, or "
        "name another namespace\n"
        "mine: the hub does not allow it: appwrappers is forbidden\n",
    )
    [(_, path, sent)] = writes(hub)
    assert (path, sent["preconditions"]) == (TRAIN, {"uid": "uid-of-train"})


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (["priority", "5", "train", "--dryrun"], "No such option '--dryrun'. Did you mean '--dry-run'?"),
        (["priority", "5", "train", "--contxt", "east"], "No such option '--contxt'. Did you mean '--context'?"),
        (["priority", "5", "train", "-x"], "No such option '-x'."),
        (["hold", "train", "a/b/c"], "'a/b/c' is no name of an AppWrapper: write NAME or NAMESPACE/NAME"),
        (["release", "train", "Big_Name"], "'Big_Name' is no name of an AppWrapper: write NAME or NAMESPACE/NAME"),
        (["cancel", "train", "team-b/x", "-n", "team-a"], "team-b/x contradicts -n team-a: leave one of them out"),
        (["wait", "team-b/x", "-n", "team-a", "--for", "done"], "team-b/x contradicts -n team-a"),
        (["logs", "team-b/x", "-n", "team-a"], "team-b/x contradicts -n team-a"),
        (["show", "team-b/x", "-n", "team-a"], "team-b/x contradicts -n team-a"),
    ],
)  # fmt: skip
async def test_wrong_word_ends_the_command_before_anything_is_written(
    ask: Run, hub: FakeApiServer, asked: list[str], problem: str
) -> None:
    ran = await ask(*asked)

    assert (ran.code, problem in ran.err) == (2, True), ran.err
    assert hub.asked == []


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1 refuses the connection"),
        ("http://nowhere.invalid", "the name of http://nowhere.invalid cannot be resolved"),
    ],
)
@pytest.mark.parametrize(
    "asked",
    [
        ["hold", "train", "x"],
        ["wait", "train", "--for", "done"],
        ["logs", "train"],
        ["running"],
        ["nodes"],
        ["queues"],
        ["clusters", "list"],
        ["show", "train"],
        ["queue"],
    ],
    ids=" ".join,
)
async def test_hub_that_is_not_there_ends_every_command_alike(
    ask: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], server: str, why: str
) -> None:
    use_kubeconfig(plain_kubeconfig(server, "team-a"), tmp_path, monkeypatch)

    assert await ask(*asked) == Ran(
        3, "", f"dispatcher: the hub does not answer: {why}. Is --kubeconfig, or KUBECONFIG, the hub's?\n"
    )


@pytest.mark.parametrize("asked", [["hold"], ["priority", "1"], ["cancel"]])
async def test_dry_run_is_checked_by_the_hub(ask: Run, hub: FakeApiServer, asked: list[str]) -> None:
    ran = await ask(*asked, "train", "--dry-run")

    assert (ran.code, ran.out.endswith(" (dry run)\n")) == (0, True)
    [sent] = [each for each in hub.asked if each.method != "GET"]
    if asked == ["cancel"]:  # the options of a deletion are its body
        assert sent.body["dryRun"] == ["All"]
    else:
        assert dict(sent.query) == {"dryRun": "All"}


DELETED = {"metadata": {**make_metadata("train"), "deletionTimestamp": "2026-11-23T09:00:00Z"}, "status": {}}


@pytest.mark.parametrize(
    ("appwrapper", "running", "done", "line"),
    [
        (train(), Wait.GOES_ON, Wait.GOES_ON, "not seen by a dispatcher yet"),
        (
            train("Backoff", waiting={"reason": "InsufficientGPU", "message": "2 free"}),
            *(Wait.GOES_ON, Wait.GOES_ON, "Queued; InsufficientGPU: 2 free"),
        ),
        (
            train("Init", waiting={"reason": "NamespaceQueueFull", "message": "3 wait"}),
            *(Wait.GOES_ON, Wait.GOES_ON, "outside the queue; NamespaceQueueFull: 3 wait"),
        ),
        (train("Dispatched", "east"), Wait.GOES_ON, Wait.GOES_ON, "Dispatched on east"),
        (train("Running", "hub"), Wait.REACHED, Wait.GOES_ON, "Running on hub"),
        (train("RunningHoldCompletion", "hub"), Wait.REACHED, Wait.GOES_ON, "RunningHoldCompletion on hub"),
        (train("Completed", "hub"), Wait.REACHED, Wait.REACHED, "Completed on hub"),
        (
            train(
                "Failed", conditions=[{"type": "Failed", "reason": "FailedComponent", "message": "exit 1"}]
            ),
            *(Wait.FAILED, Wait.FAILED, "Failed; FailedComponent: exit 1"),
        ),
        (DELETED, Wait.FAILED, Wait.FAILED, "is being deleted"),
    ],
)
def test_wait_ends_with_the_state(appwrapper: Json, running: Wait, done: Wait, line: str) -> None:
    assert (wait_for(appwrapper, Goal.RUNNING), wait_for(appwrapper, Goal.DONE)) == (running, done)
    assert progress(appwrapper) == line


def listed(*items: Json) -> Reply:
    return answer({"metadata": {"resourceVersion": "7"}, "items": list(items)})


def modified(appwrapper: Json) -> Json:
    return {"type": "MODIFIED", "object": appwrapper}


COMPLETED = modified(train("Completed", "hub"))
FAILED = modified(train("Failed", "hub", conditions=[{"type": "Failed", "message": "exit 1"}]))
RUNS = modified(train("Running", "hub"))


WAS_DELETED = "team-a/train was deleted\n"
CUT = [watch(RUNS), listed(train("Queueing")), watch(COMPLETED)]
GONE = [watch({"type": "ERROR", "object": {}}), listed()]


@pytest.mark.parametrize(
    ("goal", "replies", "code", "out", "err"),
    [
        ("running", [watch(RUNS)], 0, ["Queued", "Running on hub"], ""),
        ("done", [watch(RUNS, COMPLETED)], 0, ["Queued", "Running on hub", "Completed on hub"], ""),
        ("done", [watch(FAILED)], 1, ["Queued", "Failed on hub; exit 1"], ""),
        ("done", CUT, 0, ["Queued", "Running on hub", "Queued", "Completed on hub"], ""),
        ("done", [watch({"type": "DELETED", "object": train()})], 1, ["Queued"], WAS_DELETED),
        ("done", GONE, 1, ["Queued"], WAS_DELETED),
    ],
    ids=["running", "done", "failed", "watch that is cut", "deleted", "gone meanwhile"],
)
async def test_wait_watches_until_the_end(
    ask: Run, hub: FakeApiServer, goal: str, replies: Sequence[Reply], code: int, out: list[str], err: str
) -> None:
    hub.on("GET", COLLECTION, listed(train("Queueing")), *replies)

    ran = await ask("wait", "train", "--for", goal)

    assert ran == Ran(code, "".join(f"team-a/train {line}\n" for line in out), err)
    watched = dict(hub.requests("GET", COLLECTION)[1].query)
    assert (watched["fieldSelector"], watched["resourceVersion"]) == ("metadata.name=train", "7")


@pytest.mark.parametrize("silent", [never, watch(then=never)])
async def test_wait_that_takes_too_long_ends_with_124(ask: Run, hub: FakeApiServer, silent: Reply) -> None:
    hub.on("GET", COLLECTION, listed(train("Queueing")), silent)

    ran = await ask("wait", "train", "--for", "done", "--timeout", "0.2s")

    assert ran == Ran(124, "team-a/train Queued\n", "team-a/train is not done after 0.2s: Queued\n")


async def test_wait_survives_a_hub_that_restarts(
    ask: Run, hub: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.cli.people.following.PAUSE_SECONDS", 0.0)
    hub.on("GET", COLLECTION, hang_up, listed(train("Queueing")), hang_up, listed(train("Completed", "hub")))

    assert (await ask("wait", "train", "--for", "done")).code == 0


SLOW_FAILS = watch(modified(named("slow", "Failed")))
DONE, RUNS_ON = (
    watch(modified(named("quick", "Completed"))),
    watch(modified(named("quick", "Running")), then=never),
)


@pytest.mark.parametrize(
    ("mode", "slow", "quick", "code"),
    [
        pytest.param([], watch(modified(named("slow", "Completed"))), DONE, 0, id="all-completed"),
        pytest.param(["--all"], SLOW_FAILS, DONE, 1, id="all-but-one-failed"),
        pytest.param([], never, DONE, 124, id="all-but-one-is-late"),
        pytest.param(["--any"], never, DONE, 0, id="any-is-enough"),
        pytest.param(["--any"], SLOW_FAILS, RUNS_ON, 1, id="any-but-one-failed-and-one-is-late"),
    ],
)
async def test_wait_takes_several_names_and_ends_with_all_or_with_the_first(
    ask: Run, hub: FakeApiServer, mode: list[str], slow: Reply, quick: Reply, code: int
) -> None:
    for name in ("slow", "quick"):
        hub.on("GET", f"{COLLECTION}/{name}", answer(named(name)))
    lists = {"slow": (listed(named("slow")), slow), "quick": (listed(named("quick")), quick)}
    hub.on("GET", COLLECTION, by_selector(lists))

    ran = await ask("wait", "slow", "quick", "team-a/quick", "--for", "done", "--timeout", "1s", *mode)

    assert ran.code == code
    assert "team-a/quick not seen by a dispatcher yet" in ran.out.splitlines()
    assert ran.out.count("team-a/quick not seen") == 1


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (["submit"], "give a FILE, alone or after -f"),
        (["submit", "-", "-f", "-"], "-: is there twice: stdin can be read once"),
        (["submit", "-", "--fail-if-never", "--dry-run"], "--dry-run creates nothing to wait for"),
        (["submit", "-", "--timeout", "5s"], "--timeout bounds --wait: give --wait, too"),
        (["submit", "-", "--wait", "--dry-run"], "--dry-run creates nothing to wait for"),
        (["logs", "train", "-f", "--commands"], "--follow prints a log, and --commands prints none"),
    ],
)
async def test_option_without_effect_is_refused(
    ask: Run, hub: FakeApiServer, asked: list[str], problem: str
) -> None:
    ran = await ask(*asked)

    assert (ran.code, problem in ran.err, hub.asked) == (2, True, [])


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["hold", "tr"], ["train", ":4"]),
        (["cancel", ""], ["other", "train", ":4"]),
        (["cancel", "train", ""], ["other", ":4"]),
        (["hold", "team-a/"], ["team-a/other", "team-a/train", ":4"]),
        (["hold", "team-a/o"], ["team-a/other", ":4"]),
        (["wait", "x"], [":4"]),
        (["submit", ""], [":0"]),
        (["would", "-f", ""], [":0"]),
        (["would", "a.yaml", ""], [":0"]),
        (["plan", "-f", "sce"], [":0"]),
        (["plan", "--file", ""], [":0"]),
        (["demand", "--kinds", ""], [":0"]),
        (["queue", "--kubeconfig", ""], [":0"]),
    ],
)
async def test_names_are_completed_from_the_hub(
    ask: Run,
    hub: FakeApiServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    offered: list[str],
) -> None:
    import asyncio

    other = {**train(), "metadata": {**train()["metadata"], "name": "other"}}
    hub.on("GET", COLLECTION, listed(other, train()))
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-aw", *words])

    await asyncio.to_thread(complete_kubectl_plugin)

    assert capsys.readouterr().out.split() == offered
