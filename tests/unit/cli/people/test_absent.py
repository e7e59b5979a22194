"""A name that no AppWrapper has: an object beside the queue is told from nothing, a deleted AppWrapper by Events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.api.names import FIELD_MANAGER, NAME_LABEL
from dispatcher.cli.people.absent import WORKLOADS
from dispatcher.core.kinds.built_in import ROWS
from dispatcher.kube import paths
from tests.builders import make_appwrapper
from tests.commands import Run, runner
from tests.fakes import FakeApiServer, answer, refusal
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig

Json = dict[str, Any]

EVENTS = "/api/v1/namespaces/team-a/events"


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub with one AppWrapper, `other`, and nothing of the name `train`."""
    collection = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers"
    async with FakeApiServer() as server:
        other = make_appwrapper("other", namespace="team-a")
        server.on("GET", collection, answer({"metadata": {}, "items": [other]}))
        server.on("GET", f"{collection}/train", refusal(404, "NotFound"))
        server.on("GET", EVENTS, answer({"metadata": {}, "items": []}))
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher …` in the namespace team-a of the hub."""
    use_kubeconfig(plain_kubeconfig(hub.url, "team-a"), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys)


def said(err: str) -> str:
    """A sentence on stderr in one line."""
    return " ".join(err.split())


@pytest.mark.parametrize(("version", "plural", "kind"), WORKLOADS, ids=lambda each: each)
async def test_plain_object_is_said_to_be_beside_the_queue(
    ask: Run, hub: FakeApiServer, version: str, plural: str, kind: str
) -> None:
    hub.on("GET", paths.item(version, plural, "team-a", "train"), answer({"metadata": {"name": "train"}}))
    ran = await ask("explain", "train")
    one = f"{plural}/train -n team-a"
    assert (ran.code, ran.out) == (1, "")
    assert said(ran.err) == (
        f"dispatcher: {kind} team-a/train is not in the queue: no AppWrapper wraps it, and its pods take capacity "
        f"beside the queue. To queue it: kubectl get {one} -o yaml >train.yaml, kubectl delete {one}, dispatcher "
        "submit train.yaml"
    )


def test_kinds_that_are_looked_for_are_known_to_make_pods() -> None:
    known = {(row.group, row.kind) for row in ROWS}
    assert {(version.rpartition("/")[0], kind) for version, _, kind in WORKLOADS} <= known


async def test_object_of_a_gang_leads_to_its_appwrapper(ask: Run, hub: FakeApiServer) -> None:
    job = {"metadata": {"name": "train", "labels": {NAME_LABEL: "pretrain"}}}
    hub.on("GET", paths.item("batch/v1", "jobs", "team-a", "train"), answer(job))
    ran = await ask("explain", "team-a/train")
    assert said(ran.err) == (
        "dispatcher: Job team-a/train is no AppWrapper: it belongs to AppWrapper pretrain: dispatcher explain "
        "pretrain -n team-a"
    )


async def test_name_of_nothing_is_a_failure_as_before(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", paths.item("batch/v1", "jobs", "team-a", "train"), refusal(403, "Forbidden"))
    ran = await ask("explain", "train")
    assert (ran.code, ran.out) == (1, "")
    assert said(ran.err).startswith("dispatcher: there is no AppWrapper train in namespace team-a")


def event(reason: str, at: str, uid: str = "new", component: str = FIELD_MANAGER) -> Json:
    """An Event about AppWrapper train."""
    return {
        "involvedObject": {"kind": "AppWrapper", "name": "train", "uid": uid},
        "reason": reason,
        "message": f"it is {reason}",
        "source": {"component": component},
        "lastTimestamp": at,
    }


LIFE = [
    event("Completed", "2026-11-23T09:05:00Z"),
    event("Running", "2026-11-23T09:00:00Z"),
    event("Failed", "2026-11-23T08:00:00Z", uid="old"),
    event("Forged", "2026-11-23T09:06:00Z", component="somebody"),
]


async def test_deleted_appwrapper_is_shown_by_the_events_of_its_last_life(
    ask: Run, hub: FakeApiServer
) -> None:
    hub.on("GET", EVENTS, answer({"metadata": {}, "items": LIFE}))
    ran = await ask("show", "train", "-o", "wide")
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "team-a/train is deleted. The Events about it that the hub still has:",
            "SINCE                 REASON     MESSAGE",
            "2026-11-23T09:00:00Z  Running    it is Running",
            "2026-11-23T09:05:00Z  Completed  it is Completed",
        ],
    )
    [asked, *_] = hub.requests("GET", EVENTS)
    assert asked.query["fieldSelector"] == "involvedObject.kind=AppWrapper,involvedObject.name=train"


async def test_program_gets_the_events_of_a_deleted_appwrapper(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", EVENTS, answer({"metadata": {}, "items": LIFE[:1]}))
    [told] = json.loads((await ask("show", "train", "-o", "json")).out)
    assert told == {
        "namespace": "team-a",
        "name": "train",
        "uid": "new",
        "state": "Deleted",
        "events": [{"at": "2026-11-23T09:05:00+00:00", "reason": "Completed", "message": "it is Completed"}],
    }


@pytest.mark.parametrize("reply", [answer({"metadata": {}, "items": []}), refusal(403, "Forbidden")])
async def test_name_without_events_is_a_failure_as_before(ask: Run, hub: FakeApiServer, reply: Any) -> None:  # noqa: ANN401
    hub.on("GET", EVENTS, reply)
    ran = await ask("show", "train")
    assert (ran.code, ran.out) == (1, "")
    assert said(ran.err).startswith("dispatcher: there is no AppWrapper train in namespace team-a")
