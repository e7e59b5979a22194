"""`submit` writes who submits: for hubs whose API server checks the name, and cannot write it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.annotations import LONGEST_NAME, MOST_GROUPS, Submitter, stamp_of, submitter_of
from dispatcher.api.names import GROUPS_ANNOTATION, USER_ANNOTATION
from dispatcher.cli.hub import WHO_AM_I
from tests.builders import make_appwrapper
from tests.commands import Run, runner
from tests.fakes import FakeApiServer, Reply, answer, refusal
from tests.unit.cli.wire import echoed, plain_kubeconfig, use_kubeconfig

Json = dict[str, Any]

COLLECTION = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers"
ALICE = {"username": "alice", "uid": "7", "groups": ["vision", "system:authenticated"]}
NOT_SHOWN = "the first decision is not known: 404 page not found"
"""What is said about each AppWrapper, because this hub takes AppWrappers and shows none."""
ALICES = {USER_ANNOTATION: "alice", GROUPS_ANNOTATION: "vision"}


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub that takes AppWrappers from alice."""
    async with FakeApiServer() as server:
        server.on("POST", WHO_AM_I, answer({"status": {"userInfo": ALICE}}, status=201))
        server.on("POST", COLLECTION, echoed)
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher …` in the namespace team-a of the hub."""
    use_kubeconfig(plain_kubeconfig(hub.url, "team-a"), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys)


def written(name: str = "train", **annotations: str) -> Json:
    """An AppWrapper as a file has it."""
    manifest = make_appwrapper(name)
    return {**manifest, "metadata": {"name": name, **({"annotations": annotations} if annotations else {})}}


async def submitted(ask: Run, hub: FakeApiServer, *manifests: Json) -> list[Json]:
    """The annotations of the AppWrappers as they arrive."""
    ran = await ask("submit", "-", stdin=yaml.safe_dump_all(manifests))
    unknown = (f"team-a/{each['metadata']['name']}: {NOT_SHOWN}\n" for each in manifests)
    assert (ran.code, ran.err) == (0, "".join(unknown))
    return [each.body["metadata"].get("annotations", {}) for each in hub.requests("POST", COLLECTION)]


async def test_each_appwrapper_gets_the_name_and_the_groups_of_the_caller(
    ask: Run, hub: FakeApiServer
) -> None:
    found = await submitted(ask, hub, written("one", note="mine"), written("two"))
    assert found == [{"note": "mine", **ALICES}, ALICES]
    assert len(hub.requests("POST", WHO_AM_I)) == 1


async def test_name_in_the_file_is_left_to_the_hub(ask: Run, hub: FakeApiServer) -> None:
    assert await submitted(ask, hub, written(**{USER_ANNOTATION: "bob"})) == [{USER_ANNOTATION: "bob"}]
    assert hub.requests("POST", WHO_AM_I) == []


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(refusal(404, ""), id="an-older-hub"),
        pytest.param(refusal(403, "Forbidden"), id="not-allowed"),
        pytest.param(answer({"status": {}}), id="an-answer-without-a-name"),
        pytest.param(answer({"status": {"userInfo": {"username": "a\nb"}}}), id="a-name-of-two-lines"),
    ],
)
async def test_hub_that_does_not_tell_gets_no_name(ask: Run, hub: FakeApiServer, reply: Reply) -> None:
    hub.on("POST", WHO_AM_I, reply)
    assert await submitted(ask, hub, written()) == [{}]


@pytest.mark.parametrize(
    ("user", "groups", "expected"),
    [
        pytest.param("alice", [], Submitter("alice"), id="in-no-group"),
        pytest.param("alice", ["a", "system:authenticated"], Submitter("alice", ("a",)), id="everybody"),
        pytest.param("alice", ["x\ny", "b"], Submitter("alice", ("b",)), id="a-group-of-two-lines"),
        pytest.param("alice", ["g" * (LONGEST_NAME + 1)], Submitter("alice"), id="a-long-group"),
        pytest.param(
            "alice",
            [str(number) for number in range(MOST_GROUPS + 1)],
            Submitter("alice", tuple(map(str, range(MOST_GROUPS)))),
            id="many-groups",
        ),
        pytest.param("", ["a"], Submitter(), id="nobody"),
    ],
)
def test_stamp_is_read_as_it_was_written(user: str, groups: list[str], expected: Submitter) -> None:
    assert submitter_of(stamp_of(user, groups)) == expected
