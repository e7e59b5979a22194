"""`dispatcher clusters cordon`, `uncordon`, `drain` and `remove`: what they write, and what they say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.kube.client import METADATA_LIST
from tests.commands import Ran, Run
from tests.fakes import FakeApiServer, answer, refusal, text
from tests.unit.cli.wire import (
    MARKS,
    MEMBERS,
    SECRETS,
    Json,
    member,
    members,
    merged,
    plain_kubeconfig,
    writes,
)

EAST = f"{MEMBERS}/east"
EMPTIED = "nothing new is dispatched there, and what runs there is queued again and goes elsewhere"
CORDONED = "nothing new is dispatched there, and what runs there goes on"
REASON = {"cordonReason": "rack 3 moves"}


def patch(**spec: object) -> list[tuple[str, str, Any]]:
    """The one write there should be: of the member that was looked at, and of no successor of its name."""
    return [("PATCH", EAST, {"metadata": {"uid": "uid-of-member-east"}, "spec": spec})]


@pytest.mark.parametrize(
    ("arguments", "before", "sent", "said"),
    [
        pytest.param(["cordon"], {}, {"cordoned": True}, f"cordoned: {CORDONED}", id="cordon"),
        pytest.param(
            ["cordon", "--reason", "rack 3 moves"],
            {},
            {"cordoned": True, **REASON},
            f"cordoned: {CORDONED}",
            id="cordon-for-a-reason",
        ),
        pytest.param(
            ["cordon"],
            {"cordoned": True, **REASON},
            {"cordoned": True},
            f"already cordoned: {CORDONED}",
            id="cordon-again",
        ),
        pytest.param(
            ["cordon"],
            {"cordoned": True, "drain": True},
            {"cordoned": True},
            f"already being emptied: {EMPTIED}",
            id="cordon-of-what-is-drained",
        ),
        pytest.param(
            ["drain", "--reason", "rack 3 moves"],
            {"cordoned": True},
            {"cordoned": True, "drain": True, **REASON},
            f"being emptied: {EMPTIED}",
            id="drain",
        ),
        pytest.param(
            ["uncordon"],
            {"cordoned": True, "drain": True, **REASON},
            {"cordoned": False, "drain": False, "cordonReason": None},
            "open: gangs may be dispatched there",
            id="uncordon-ends-a-drain-too",
        ),
        pytest.param(
            ["uncordon"],
            {},
            {"cordoned": False, "drain": False, "cordonReason": None},
            "already open: gangs may be dispatched there",
            id="uncordon-of-what-is-open",
        ),
    ],
)
async def test_closing_and_opening(
    run: Run, hub: FakeApiServer, arguments: list[str], before: Json, sent: Json, said: str
) -> None:
    found = member(**before)
    hub.on("GET", EAST, answer(found))
    hub.on("PATCH", EAST, merged(found))

    assert await run(*arguments, "east") == Ran(0, f"east is {said}\n")
    assert writes(hub) == patch(**sent)


@pytest.mark.parametrize("command", ["cordon", "uncordon", "drain", "remove"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("east", "there is no member cluster east. See those there are with: dispatcher clusters list"),
        (
            "hub",
            "the hub is not declared: it takes every gang as long as there are no member clusters, and none once "
            "there are. Declare it with: dispatcher clusters add hub",
        ),
    ],
)
async def test_cluster_that_is_not_there(
    run: Run, hub: FakeApiServer, command: str, name: str, said: str
) -> None:
    hub.on("GET", f"{MEMBERS}/{name}", refusal(404, "NotFound"))
    hub.on("GET", SECRETS, answer({"metadata": {}, "items": []}))

    assert await run(command, name) == Ran(1, "", f"dispatcher: {said}\n")
    assert writes(hub) == []


@pytest.mark.parametrize("command", ["cordon", "uncordon", "drain", "remove", "add"])
async def test_change_on_a_hub_without_memberclusters_names_the_file_to_apply(
    run: Run, hub: FakeApiServer, command: str
) -> None:
    hub.on("GET", EAST, text("404 page not found\n", 404))

    ran = await run(command, "east")

    assert (ran.code, ran.out, writes(hub)) == (1, "", [])
    assert ran.err.startswith("dispatcher: the hub does not know MemberClusters yet: kubectl apply -f crds/")


async def test_hub_is_that_of_the_context(run: Run, hub: FakeApiServer, tmp_path: Path) -> None:
    hub.on("GET", EAST, answer(member()))
    hub.on("PATCH", EAST, merged(member()))
    config = plain_kubeconfig("http://127.0.0.1:1")
    config["contexts"].append({"name": "real", "context": {"cluster": "real", "user": "me"}})
    config["clusters"].append({"name": "real", "cluster": {"server": hub.url}})
    path = tmp_path / "other.kubeconfig"
    path.write_text(yaml.safe_dump(config))

    assert (await run("drain", "east", "--kubeconfig", str(path))).code == 3
    assert (await run("drain", "east", "--kubeconfig", str(path), "--context", "real")).code == 0
    assert (await run("list", "--kubeconfig", str(path), "--context", "real")).code == 0
    assert [method for method, *_ in writes(hub)] == ["PATCH"]


async def test_context_is_refused_if_the_database_is_read(run: Run) -> None:
    ran = await run("--context", "real", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert (ran.code, ran.out) == (2, "")
    assert "--context is about a kubeconfig, and the database is read: leave it out" in ran.err


async def test_options_before_a_command_are_refused(run: Run, hub: FakeApiServer) -> None:
    for asked in (["-o", "json", "cordon", "east"], ["--kubeconfig", "other", "drain", "east"]):
        ran = await run(*asked)
        assert (ran.code, ran.out, hub.asked) == (2, "", [])
        assert "give options at the end, such as: dispatcher clusters list -o json" in ran.err


async def test_cluster_that_was_declared_anew_meanwhile_is_not_touched(run: Run, hub: FakeApiServer) -> None:
    hub.on("GET", EAST, answer(member()))
    hub.on("PATCH", EAST, refusal(422, "Invalid", "metadata.uid: Invalid value: field is immutable"))

    assert await run("drain", "east") == Ran(
        1,
        "",
        "dispatcher: the hub has seen another change at the same time; try again: metadata.uid: Invalid value: field "
        "is immutable\n",
    )


@pytest.mark.parametrize("name", ["East", "../pods", "a" * 64, ""])
async def test_name_that_no_cluster_can_have_is_a_usage_error(
    run: Run, hub: FakeApiServer, name: str
) -> None:
    ran = await run("cordon", name)

    assert (ran.code, ran.out, hub.asked) == (2, "", [])
    assert "is no name of a cluster" in ran.err


@pytest.fixture
def removable(hub: FakeApiServer) -> FakeApiServer:
    """A hub with the member `east`, its Secret, and another member."""
    secret = {"metadata": {"name": "cluster-east", "uid": "uid-of-secret", "labels": MARKS}}
    hub.on("GET", EAST, answer(member(status={"running": 0})))
    hub.on("GET", MEMBERS, members(member("west")))
    hub.on("GET", SECRETS, answer({"metadata": {}, "items": [secret]}))
    hub.on("DELETE", EAST, answer({}))
    hub.on("DELETE", f"{SECRETS}/cluster-east", answer({}))
    return hub


def removal(path: str, uid: str) -> tuple[str, str, Json]:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    return "DELETE", path, {**options, "preconditions": {"uid": uid}}


REMOVAL = removal(EAST, "uid-of-member-east")
CLEARANCE = removal(f"{SECRETS}/cluster-east", "uid-of-secret")
REMOVED = "member cluster east removed\n"
CLEARED = "Secret queue/cluster-east removed\n"


async def test_member_is_removed_with_the_secret_that_was_made_for_it(
    run: Run, removable: FakeApiServer
) -> None:
    assert await run("remove", "east") == Ran(0, REMOVED + CLEARED)
    assert writes(removable) == [REMOVAL, CLEARANCE]


async def test_secret_is_found_by_its_labels_and_not_read(run: Run, removable: FakeApiServer) -> None:
    await run("remove", "east")

    [asked] = removable.requests("GET", SECRETS)
    assert asked.query["labelSelector"] == ",".join(f"{key}={value}" for key, value in MARKS.items())
    assert asked.headers["Accept"] == METADATA_LIST


async def test_removing_the_last_member_makes_the_hub_run_everything(
    run: Run, removable: FakeApiServer
) -> None:
    removable.on("GET", MEMBERS, members())

    assert await run("remove", "east") == Ran(
        0,
        f"{REMOVED}{CLEARED}None is left: ten minutes from now every gang goes to the hub itself. "
        "To have it take gangs now: dispatcher clusters add hub\n",
    )


async def test_secret_that_others_made_is_left(run: Run, removable: FakeApiServer) -> None:
    removable.on("GET", SECRETS, answer({"metadata": {}, "items": []}))

    assert await run("remove", "east") == Ran(
        0, f"{REMOVED}The namespace queue has no Secret that add made for it; cluster-east is left\n"
    )
    assert writes(removable) == [REMOVAL]


async def test_removal_that_was_broken_off_is_finished(run: Run, removable: FakeApiServer) -> None:
    removable.on("GET", EAST, refusal(404, "NotFound"))

    assert await run("remove", "east") == Ran(0, CLEARED)
    assert writes(removable) == [CLEARANCE]


async def test_member_that_another_user_removed_meanwhile_counts_as_removed(
    run: Run, removable: FakeApiServer
) -> None:
    for path in (EAST, f"{SECRETS}/cluster-east"):
        removable.on("DELETE", path, refusal(404, "NotFound"))

    assert await run("remove", "east") == Ran(0, REMOVED + CLEARED)


async def test_member_with_gangs_is_not_removed(run: Run, removable: FakeApiServer) -> None:
    removable.on("GET", EAST, answer(member(status={"running": 3})))

    assert await run("remove", "east") == Ran(
        1,
        "",
        "dispatcher: AppWrappers dispatched to east: 3. Empty it first with: dispatcher clusters drain east; or "
        "--force: then nobody looks after what runs there\n",
    )
    assert writes(removable) == []


async def test_member_with_gangs_is_removed_by_force(run: Run, removable: FakeApiServer) -> None:
    removable.on("GET", EAST, answer(member(status={"running": 3})))

    assert await run("remove", "east", "--force") == Ran(0, REMOVED + CLEARED)
    assert writes(removable) == [REMOVAL, CLEARANCE]
