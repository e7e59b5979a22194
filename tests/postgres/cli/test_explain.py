"""`explain` and `would`, as people and programs see them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.builders import make_template
from tests.commands import Ran, Run
from tests.postgres.cli.lives import shown
from tests.postgres.cli.queues import EAST, LARGE, SMALL, SWEEP, TRAIN, WEST, Queues, fill, snap
from tests.postgres.cli.shared_databases import filled_database

Json = dict[str, Any]

TAINTED = "1 of 2 nodes excluded: 1 with taint team=b not tolerated"


@dataclass(frozen=True, slots=True)
class Filled:
    """A database with two clusters, one of them cordoned, and a queue in front."""

    url: str
    queues: Queues


@pytest.fixture(scope="module")
def filled(postgres_url: str, replaying_template: str) -> Iterator[Filled]:
    """Made once for all tests that only read it."""
    with filled_database(postgres_url, replaying_template, fill_and_snap) as (url, queues):
        yield Filled(url, queues)


async def fill_and_snap(database: Database, leadership: Leadership, queue: QueueStore) -> Queues:
    queues = await fill(queue)
    await snap(database, leadership, queues.taken_at, EAST, WEST)
    return queues


@pytest.fixture
def database_url(filled: Filled) -> str:
    """The same database for all tests here, since they only read it."""
    return filled.url


@pytest.fixture
def queues(filled: Filled) -> Queues:
    return filled.queues


def rejections(free: int, needs: int = 6) -> str:
    return (
        "CLUSTER  REASON                 MESSAGE\n"
        f"east     InsufficientResources  cpu: needs {needs}, {free} free; {TAINTED}\n"
        "west     ClusterCordoned        new switches\n"
    )


UNKNOWN = "  estimated start unknown: "
ENDLESS = f"{UNKNOWN}no end is known for "
SWEEPS = "team-b/sweep (cpu 2, no dispatchDuration)"
SWEEP_IS_ENDLESS = f"{ENDLESS}{SWEEPS}\n"
SWEEP_AND_SMALL_ARE = f"{ENDLESS}team-a/small (cpu 2, no dispatchDuration) and {SWEEPS}\n"


# --- a gang that waits -----------------------------------------------------------------------------------------


LARGE_EXPLAINED = Ran(
    0,
    "team-a/large waits: InsufficientResources\n"
    "  position 1 of 2 in the queue, before team-a/small\n"
    f"{SWEEP_IS_ENDLESS}"
    "\n"
    f"{rejections(0)}"
    "\n"
    "HELD BY       USER   CLUSTER  HOLDS  SINCE  EXPECTED UNTIL\n"
    "team-a/train  alice  east     cpu 5  3h     in 59m\n"
    "team-b/sweep  -      east     cpu 2  3h     unknown\n"
    "\n"
    "It would be dispatched\n"
    "  without the taints of t1 in east\n"
    "  with 1 more node like n1 in east (cpu 8, memory 16Gi)\n"
    "  without team-a/train, team-b/sweep\n",
)


async def test_a_gang_that_waits_is_explained(run: Run, queues: Queues) -> None:
    assert without_age(await run("explain", "large")) == LARGE_EXPLAINED


async def test_a_program_gets_all_fields(run: Run, queues: Queues) -> None:
    ran = await run("explain", "large", "-n", "team-a", "-o", "json")
    started = queues.started.isoformat()
    holder = {"namespace": "team-a", "cluster": "east", "since": started}
    (found,) = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert found.pop("ageSeconds") >= 0
    assert found == {
        "name": "large",
        "namespace": "team-a",
        "uid": LARGE,
        "state": "Queued",
        "verdict": "Waits",
        "position": 1,
        "ahead": [],
        "behind": ["team-a/small"],
        "eligibleAt": None,
        "estimatedStart": None,
        "estimateUnknown": f"no end is known for {SWEEPS}",
        "cluster": "east",
        "reason": "InsufficientResources",
        "resource": "cpu",
        "message": f"east (cpu: needs 6, 0 free; {TAINTED}), west (new switches)",
        "clusters": [
            {
                "cluster": "east",
                "reason": "InsufficientResources",
                "message": f"cpu: needs 6, 0 free; {TAINTED}",
            },
            {"cluster": "west", "reason": "ClusterCordoned", "message": "new switches"},
        ],
        "holders": [
            {
                **holder,
                "name": "train",
                "uid": TRAIN,
                "user": "alice",
                "demand": {"cpu": 5000},
                "expectedUntil": (queues.started + timedelta(hours=4)).isoformat(),
            },
            {
                **holder,
                "name": "sweep",
                "namespace": "team-b",
                "uid": SWEEP,
                "user": "",
                "demand": {"cpu": 2000},
                "expectedUntil": None,
            },
        ],
        "repair": [
            {"untaint": {"cluster": "east", "nodes": ["t1"]}},
            {
                "add_nodes": {
                    "cluster": "east",
                    "count": 1,
                    "allocatable": {"cpu": "8", "memory": "16Gi"},
                    "labels": {"zone": "a"},
                }
            },
            {"remove": ["team-a/train", "team-b/sweep"]},
        ],
        "uncordon": [],
        "priority": None,
        "takenAt": queues.taken_at.isoformat(),
    }


FITS = "team-a/large fits: the next cycle dispatches it to east, on"


@pytest.mark.parametrize(
    ("asked", "begins"),
    [
        (
            ["large", "--if", "east/nodes+1:like=n1"],
            f"{FITS} added-0-0.\n  position 1 of 2 in the queue, before team-a/small\n",
        ),
        (
            ["large", "--if", "east/nodes+1:cpu=6"],
            f"{FITS} added-0-0.\n  position 1 of 2 in the queue, before team-a/small\n",
        ),
        (
            ["large", "--if", "untaint:t1"],
            f"{FITS} t1.\n  position 1 of 2 in the queue, before team-a/small\n",
        ),
        (
            ["large", "--if-gone", "train", "--if-gone", "team-b/sweep"],
            f"{FITS} n1.\n  position 1 of 2 in the queue, before team-a/small\n",
        ),
        (
            [LARGE, "--uid", "--if", "untaint:t1"],
            f"{FITS} t1.\n  position 1 of 2 in the queue, before team-a/small\n",
        ),
        (
            ["large", "--if", "untaint:t1", "--priority", "-1"],
            f"{FITS} t1.\n  position 2 of 2 in the queue, after team-a/small\n",
        ),
        (
            ["large", "--if-gone", "train"],
            "team-a/large waits: InsufficientResources\n  position 1 of 2 in the queue, before team-a/small\n"
            f"{SWEEP_AND_SMALL_ARE}\n{rejections(5)}",
        ),
        (
            ["large", "--if", "east/nodes+3:cpu=5"],
            "team-a/large waits: InsufficientResources\n  position 1 of 2 in the queue, before team-a/small\n"
            f"{SWEEP_AND_SMALL_ARE}\n"
            "CLUSTER  REASON                 MESSAGE\n"
            "east     InsufficientResources  cpu: 15 free, at most 5 on one node,",
        ),
        (
            ["small", "--priority", "9", "--if-gone", "sweep"],
            "team-a/small fits: the next cycle dispatches it to east, on n1.\n"
            "  position 1 of 2 in the queue, before team-a/large\n",
        ),
        (
            ["large", "--without-cluster", "west"],
            "team-a/large waits: InsufficientResources\n"
            "  position 1 of 2 in the queue, before team-a/small\n"
            f"{SWEEP_IS_ENDLESS}\n"
            "CLUSTER  REASON                 MESSAGE\n"
            f"east     InsufficientResources  cpu: needs 6, 0 free; {TAINTED}\n\nHELD BY",
        ),
        (
            ["large", "--without-cluster", "east"],
            "team-a/large does not fit any cluster: ClusterCordoned\n"
            "  position 1 of 2 in the queue, before team-a/small\n"
            f"{UNKNOWN}after all known ends it still waits: ClusterCordoned\n\n"
            "CLUSTER  REASON           MESSAGE\nwest     ClusterCordoned  new switches\n",
        ),
        (
            ["large", "--without-cluster", "east", "--without-cluster", "west"],
            "team-a/large waits: NoCluster\n  position 1 of 2 in the queue, before team-a/small\n"
            f"{UNKNOWN}after all known ends it still waits: NoCluster\n"
            "  no cluster has reported its capacity yet\n",
        ),
    ],
    ids=lambda asked: " ".join(asked) if isinstance(asked, list) else "",
)
async def test_a_change_is_decided_on(run: Run, queues: Queues, asked: list[str], begins: str) -> None:
    ran = await run("explain", *asked)
    assert (ran.code, ran.out[: len(begins)], ran.err) == (0, begins, "")


async def test_start_is_estimated_from_the_limit_of_the_gang_that_runs(run: Run, queues: Queues) -> None:
    start = queues.started + timedelta(hours=4)
    ran = await run("explain", "small", "--if-gone", "team-a/large")
    assert ran.out.startswith(
        "team-a/small waits: InsufficientResources\n  position 1 of 1 in the queue\n"
        f"  estimated start {shown(start)}\n\n{rejections(0, 2)}"
    )


async def test_the_reader_gets_the_same_answer(run: Run, queues: Queues, reader_url: str) -> None:
    assert without_age(await run("explain", "large", "--database-url", reader_url)) == LARGE_EXPLAINED


# --- no gang that waits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train", "team-a/train is Running on east.\n"),
        ("failed", "team-b/failed is Failed: FoundFailedPods: 2 pods failed.\n"),
    ],
)
async def test_another_state_is_named(run: Run, queues: Queues, name: str, expected: str) -> None:
    assert await run("explain", name) == Ran(0, expected)


@pytest.mark.parametrize(
    "change",
    [
        ["--priority", "9"],
        ["--if", "east/nodes+1:cpu=1"],
        ["--if-gone", "team-b/sweep"],
        ["--without-cluster", "east"],
    ],
    ids=lambda change: change[0],
)
async def test_change_that_is_not_planned_is_named(run: Run, queues: Queues, change: list[str]) -> None:
    ran = await run("explain", "train", *change)
    assert ran == Ran(
        0, "team-a/train is Running on east.\n", "Nothing was planned: team-a/train is not pending.\n"
    )


async def test_a_program_gets_the_state(run: Run, queues: Queues) -> None:
    ran = await run("explain", "train", "-o", "json")
    expected = {"name": "train", "namespace": "team-a", "uid": TRAIN, "state": "Running"}
    assert (ran.code, json.loads(ran.out)) == (0, [expected])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            ["nobody"],
            "there is no AppWrapper nobody in any namespace: "
            "if there was one, `kubectl aw show nobody` has its history",
        ),
        (
            ["large", "-n", "team-b"],
            "there is no AppWrapper large in namespace team-b: "
            "if there was one, `kubectl aw show team-b/large` has its history",
        ),
        (["lagre"], "there is no AppWrapper lagre in any namespace; did you mean large?"),
        (
            ["large", "--uid"],
            "there is no AppWrapper of the uid large: "
            "if there was one, `kubectl aw show --uid large` has its history",
        ),
    ],
)
async def test_an_unknown_name_is_answered_with_where_to_look(
    run: Run, queues: Queues, asked: list[str], message: str
) -> None:
    assert await run("explain", *asked) == Ran(1, "", f"dispatcher: {message}\n")


async def test_a_database_that_is_not_there_is_to_be_tried_again(run: Run) -> None:
    ran = await run("explain", "aw", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert (ran.code, ran.out) == (3, "")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--if", "nodes+1:cpu=1"], "say in which cluster, such as east/…: the clusters are east, west"),
        (["--if", "south/nodes+1:cpu=1"], "there is no cluster 'south': the clusters are east, west"),
        (["--if", "east/nodes+1:cpu=8Q"], "'east/nodes+1:cpu=8Q': cpu: '8Q' is not a quantity; allowed are "),
        (["--if", "a\nb"], r"'a\nb' is no change: write [CLUSTER/]nodes+COUNT:RESOURCE=AMOUNT"),
        (["--if-gone", "nobody"], "there is no AppWrapper nobody in any namespace"),
        (["--if-gone", "large"], "'large' is the AppWrapper to explain: name another one"),
        (["--without-cluster", "south"], "there is no cluster 'south': the clusters are east, west"),
        (
            ["--without-cluster", "east", "--if", "untaint:t1"],
            "no cluster has a node 't1'",
        ),
    ],
    ids=lambda asked: " ".join(asked) if isinstance(asked, list) else "",
)
async def test_a_wrong_change_is_wrong_usage(
    run: Run, queues: Queues, asked: list[str], message: str
) -> None:
    ran = await run("explain", "large", *asked)
    assert (ran.code, ran.out) == (2, "")
    assert f"\nError: Invalid value: {message}" in ran.err


@pytest.mark.parametrize(
    "asked",
    [
        ["explain"],
        ["explain", "a", "b"],
        ["explain", "a", "--priority", "high"],
        ["explain", "a", "-o", "xml"],
        ["would"],
    ],
    ids=" ".join,
)
async def test_wrong_options_are_wrong_usage(run: Run, asked: list[str]) -> None:
    ran = await run(*asked)
    assert (ran.code, ran.out) == (2, "")


# --- would -------------------------------------------------------------------------------------------------------


def manifest(name: str = "a", cpu: str = "4", **spec: object) -> Json:
    """An AppWrapper of one pod that tolerates any taint."""
    pod = copy.deepcopy(make_template())
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name},
        "spec": {"resources": {"GenericItems": [{"generictemplate": pod}]}, **spec},
    }


AGE = re.compile(
    r"\nAs of \d+[smhd] ago: the leader writes clusters and queues some seconds after they change\.\n"
)


def without_age(ran: Ran) -> Ran:
    """What ran, without the age of the leader's facts, which is told once."""
    rest, told = AGE.subn("", ran.out)
    assert told == 1
    return replace(ran, out=rest)


SUSPENDED = "default/s is suspended: it would not be queued before it is resumed.\n"
NO_HUB = "Without a kubeconfig, rights of the author do not count.\n"


async def test_appwrappers_of_a_file_are_decided_together(run: Run, queues: Queues) -> None:
    files = [manifest("a"), manifest("b", "5"), manifest("s", suspend=True)]
    ran = await run("would", "-f", "-", stdin=yaml.safe_dump_all(files))
    assert without_age(ran) == Ran(
        0,
        "default/a fits: the next cycle dispatches it to east, on t1.\n"
        "  position 3 of 4 in the queue, after team-a/large, team-a/small, before default/b\n"
        "\n"
        "default/b waits: InsufficientResources\n"
        "  position 4 of 4 in the queue, after team-a/large, team-a/small, default/a\n"
        f"{ENDLESS}default/a (no dispatchDuration) and team-b/sweep (no dispatchDuration)\n"
        "\n"
        "CLUSTER  REASON                 MESSAGE\n"
        "east     InsufficientResources  cpu: needs 5, 4 free\n"
        "west     ClusterCordoned        new switches\n"
        "\n"
        "It would be dispatched\n"
        "  with priority 1 instead of 0\n"
        "  with 1 more node like t1 in east (cpu 8, memory 16Gi)\n",
        NO_HUB + SUSPENDED,
    )


SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}}
QUEUE = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "team-a"}}


async def test_objects_without_pods_in_a_file_count_nothing_and_are_listed(run: Run, queues: Queues) -> None:
    alone = without_age(await run("would", "-f", "-", stdin=yaml.safe_dump(manifest("a"))))
    beside = yaml.safe_dump_all([SERVICE, manifest("a"), QUEUE])
    assert without_age(await run("would", "-f", "-", stdin=beside)) == Ran(
        0,
        f"{alone.out}\n"
        "Service/front makes no pods and is no AppWrapper: nothing is decided about it.\n"
        "Queue/team-a makes no pods and is no AppWrapper: nothing is decided about it.\n",
        alone.err,
    )
    ran = await run("would", "-f", "-", "-o", "json", stdin=beside)
    first, *rest = json.loads(ran.out)
    assert (first["name"], first["verdict"]) == ("a", "Dispatch")
    assert rest == [
        {"kind": "Service", "name": "front", "makesPods": False},
        {"kind": "Queue", "name": "team-a", "makesPods": False},
    ]


async def test_objects_without_pods_beside_a_suspended_appwrapper_are_listed(
    run: Run, queues: Queues
) -> None:
    ran = await run("would", "-f", "-", stdin=yaml.safe_dump_all([manifest("s", suspend=True), SERVICE]))
    assert ran == Ran(
        0,
        "Service/front makes no pods and is no AppWrapper: nothing is decided about it.\n",
        NO_HUB + SUSPENDED,
    )


async def test_plain_objects_are_decided_as_the_gang_that_submit_makes_of_them(
    run: Run, queues: Queues
) -> None:
    (item,) = manifest("pod")["spec"]["resources"]["GenericItems"]
    written = yaml.safe_dump_all([SERVICE, item["generictemplate"]])
    as_gang = without_age(await run("would", "-", stdin=yaml.safe_dump(manifest("pod"))))
    assert without_age(await run("would", "-", stdin=written)) == as_gang
    assert as_gang.out.startswith("default/pod fits")


async def test_a_program_gets_the_place_of_a_proposal(run: Run, queues: Queues, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(manifest("a")))
    ran = await run("would", "-f", str(path), "-n", "team-c", "--priority", "9", "-o", "json")
    found = json.loads(ran.out)
    assert found[0].pop("ageSeconds") >= 0
    assert (ran.code, found) == (
        0,
        [
            {
                "name": "a",
                "namespace": "team-c",
                "uid": "proposal/0",
                "state": "Queued",
                "verdict": "Dispatch",
                "position": 1,
                "ahead": [],
                "behind": ["team-a/large", "team-a/small"],
                "eligibleAt": None,
                "estimatedStart": None,
                "estimateUnknown": None,
                "cluster": "east",
                "nodes": [[["t1", 1]]],
                "message": "west (new switches)",
                "holders": [],
                "repair": [],
                "uncordon": [],
                "priority": None,
                "takenAt": queues.taken_at.isoformat(),
            }
        ],
    )


async def test_changes_hold_for_proposals_too(run: Run, queues: Queues) -> None:
    asked = [
        "--if-gone",
        "train",
        "--if-gone",
        "large",
        "--without-cluster",
        "west",
        "--if",
        "nodes+1:like=n1",
    ]
    ran = without_age(await run("would", "-f", "-", *asked, stdin=yaml.safe_dump(manifest("a", "8"))))
    assert ran.out.splitlines()[0].startswith("default/a fits: the next cycle dispatches it to east, on ")
    assert ran.out.splitlines()[1:] == ["  position 2 of 2 in the queue, after team-a/small"]


async def test_nothing_is_submitted(run: Run, queues: Queues) -> None:
    await run("would", "-f", "-", stdin=yaml.safe_dump(manifest()))
    waiting = json.loads((await run("queue", "-o", "json")).out)
    assert {each["uid"] for each in waiting} == {LARGE, SMALL}


async def test_without_an_answer_of_the_hub_it_says_so_and_answers(run: Run, queues: Queues) -> None:
    asked = ["would", "-f", "-", "--kubeconfig", "/nowhere"]
    ran = await run(*asked, stdin=yaml.safe_dump(manifest()))
    assert ran.out.startswith("default/a fits")
    assert ran.err.startswith("The hub does not say it, so rights of the author do not count: ")


@pytest.mark.parametrize(
    ("asked", "namespace"),
    [([], "team-a"), (["--context", "plain"], "default"), (["-n", "team-c"], "team-c")],
    ids=["current context", "context without one", "option"],
)
async def test_namespace_of_a_proposal_is_that_of_the_kubeconfig(
    run: Run, queues: Queues, tmp_path: Path, asked: list[str], namespace: str
) -> None:
    contexts = {"mine": {"namespace": "team-a"}, "plain": {}}
    kubeconfig = {
        "current-context": "mine",
        "contexts": [
            {"name": name, "context": {**fields, "cluster": "c", "user": "u"}}
            for name, fields in contexts.items()
        ],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    command = ["would", "-f", "-", "--kubeconfig", str(tmp_path / "config"), *asked]
    ran = await run(*command, stdin=yaml.safe_dump(manifest()))
    assert ran.out.startswith(f"{namespace}/a fits")


async def test_a_file_with_only_suspended_appwrappers_has_no_decision(run: Run, queues: Queues) -> None:
    ran = await run("would", "-f", "-", stdin=yaml.safe_dump(manifest("s", suspend=True)))
    assert ran == Ran(0, "", NO_HUB + SUSPENDED)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            yaml.safe_dump_all([manifest(), make_template("CronJob", "batch/v1")]),
            "<stdin>: object 2 (CronJob): spec.jobTemplate.spec",
        ),
        (
            yaml.safe_dump(manifest("a", "lots")),
            "<stdin>: object 1 (AppWrapper): spec.resources.GenericItems[0]",
        ),
        (
            yaml.safe_dump_all([SERVICE, manifest(), make_template("Simulation", "example.com/v1")]),
            '<stdin>: object 3 (Simulation): kind: no template says what the pods ask for of a "Simulation"',
        ),
        (yaml.safe_dump_all([SERVICE, QUEUE]), "<stdin>: no object makes pods"),
        (": : :", "<stdin>: line 1: did not find expected key"),
        ("", "<stdin>: has no Kubernetes object"),
    ],
    ids=[
        "job-with-a-schedule",
        "no-quantity",
        "kind-that-may-make-pods",
        "nothing-to-decide",
        "no-yaml",
        "empty",
    ],
)
async def test_a_wrong_file_is_wrong_usage(run: Run, queues: Queues, content: str, message: str) -> None:
    ran = await run("would", "-f", "-", stdin=content)
    assert (ran.code, ran.out, ran.err.partition(message)[:2]) == (2, "", ("dispatcher: ", message))
