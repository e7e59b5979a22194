"""`queue` from a kubeconfig alone: the rows that statuses give, the screens, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.pending import START, UNKNOWN
from dispatcher.cli.people.queue_listing import QUEUE
from dispatcher.cli.screens.appwrapper_status import COLUMNS, MORE_COLUMNS, pending_report
from dispatcher.cli.screens.output import as_table
from dispatcher.core.intake import namespace_bounds
from dispatcher.store.readers.reports import Filter
from tests.builders import make_appwrapper
from tests.commands import Ran, Run, runner
from tests.fakes import FakeApiServer, answer, hang_up, refusal
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig

Json = dict[str, Any]

TESTS = Path(__file__).parents[3]
NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
COLLECTION = "/apis/workload.codeflare.dev/v1beta1{}/appwrappers"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def queued(name: str, hours: int, *, namespace: str = "team-a", **fields: Any) -> Json:  # noqa: ANN401
    """An AppWrapper that waits so many hours; `fields` are those of its status."""
    status = {
        "state": "Pending",
        "queuejobstate": "Backoff",
        "systempriority": 0,
        "queue": "default",
        **fields,
    }
    created = f"{NOW - timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"
    return make_appwrapper(name, status=status, namespace=namespace, creationTimestamp=created)


def short(**fields: Any) -> Json:  # noqa: ANN401
    """The `waiting` of a gang that capacity is short for."""
    return {"reason": "InsufficientResources", "message": "cluster hub: cpu: needs 1, 0 free", **fields}


GANGS = [
    queued("far", 1, waiting=short(position=100), user="ada", gpus=8),
    queued("twentieth", 2, waiting=short(position=20, queueLength=300), user="ada", gpus=8),
    queued("after-it", 2, waiting=short(position=20), user="ada", gpus=8),
    queued(
        "first",
        50,
        waiting=short(
            position=1,
            queueLength=300,
            estimatedStart="2026-11-23T14:00:00Z",
            clusters=[{"cluster": "east", "reason": "NoRoom"}, {"cluster": "west", "reason": "NoRoom"}],
        ),
        user="cleo",
        systempriority=5,
        gpus=2,
    ),
    queued("new", 0, queuejobstate="Queueing"),
    queued(
        "huge", 90, namespace="team-b", waiting={"reason": "LargerThanCluster", "cluster": "hub"}, gpus=64
    ),
    queued("night", 3, queue="night", waiting=short(position=1, queueLength=1)),
    queued("runs", 9, state="Running", queuejobstate="Running", cluster="hub"),
    queued("held", 9, queuejobstate="Suspended"),
    queued("leaves", 9, cluster="hub"),
    make_appwrapper("unseen", namespace="team-a"),
    make_appwrapper("outside", namespace="team-a", status=namespace_bounds.deferred_status("team-a", 3)),
]
TABLE = """\
QUEUE    POSITION  NAME              USER    PRIORITY  WAITED  GPU  REASON                 EST START
default  1         team-a/first      cleo    5         2d      2    InsufficientResources  2026-11-23T14:00:00Z
default  20        team-a/twentieth  ada     0         2h      8    InsufficientResources  unknown
default  20+       team-a/after-it   ada     0         2h      8    InsufficientResources  unknown
default  100+      team-a/far        ada     0         60m     8    InsufficientResources  unknown
default  -         team-b/huge       team-b  0         3d      64   LargerThanCluster      unknown
default  -         team-a/new        team-a  0         0s      0    -                      unknown
night    1         team-a/night      team-a  0         3h      0    InsufficientResources  unknown"""


def test_queued_appwrappers_are_listed_by_position() -> None:
    assert as_table(pending_report(GANGS, Filter(), NOW), QUEUE) == TABLE


def test_columns_are_those_of_the_database_and_some_more() -> None:
    golden = (TESTS / "golden" / "history-columns.txt").read_text().splitlines()
    of_view = [line.split()[1] for line in golden if line.startswith("queue_now ")]
    assert (*(name for name in of_view if name != "est_start"), START, UNKNOWN) == COLUMNS
    assert pending_report((), Filter(), NOW).columns == (*COLUMNS, *MORE_COLUMNS)


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (Filter(user="cleo"), ["first"]),
        (Filter(user="team-b"), ["huge"]),
        (Filter(queue="night"), ["night"]),
        (Filter(user="ada", queue="night"), []),
    ],
)
def test_queue_may_be_narrowed(of: Filter, names: list[str]) -> None:
    assert [row["name"] for row in pending_report(GANGS, of, NOW)] == names


def test_reasons_of_clusters_are_counted() -> None:
    found = {row["name"]: row["blocking_clusters"] for row in pending_report(GANGS, Filter(), NOW)}
    assert (found["first"], found["huge"], found["far"]) == ({"NoRoom": 2}, {"LargerThanCluster": 1}, None)


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub with these AppWrappers, the first six of them in a first page."""
    async with FakeApiServer() as server:
        first, rest = GANGS[:6], GANGS[6:]
        server.on(
            "GET",
            COLLECTION.format(""),
            answer({"metadata": {"continue": "more"}, "items": first}),
            answer({"metadata": {}, "items": rest}),
        )
        server.on("GET", COLLECTION.format("/namespaces/team-a"), answer({"metadata": {}, "items": GANGS}))
        server.on("GET", COLLECTION.format("/namespaces/team-c"), answer({"metadata": {}, "items": []}))
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher queue …` with a kubeconfig of two contexts: team-a of the hub, and team-c of it."""
    config = plain_kubeconfig(hub.url, "team-a")
    config["contexts"].append(
        {"name": "third", "context": {"cluster": "hub", "user": "me", "namespace": "team-c"}}
    )
    use_kubeconfig(config, tmp_path, monkeypatch)
    return runner(monkeypatch, capsys, "queue")


async def test_queue_of_all_namespaces_is_read_in_pages(ask: Run, hub: FakeApiServer) -> None:
    ran = await ask("-A", "-l", "app=train", "-o", "json")

    found = json.loads(ran.out)
    assert [each["name"] for each in found][:3] == ["first", "twentieth", "after-it"]
    assert len(found) == 7
    assert (found[0]["estimated_start"], found[0]["position"], found[0]["cpu"]) == (
        "2026-11-23T14:00:00+00:00",
        1,
        None,
    )
    assert [each["is_position_rounded"] for each in found[:3]] == [False, False, True]
    assert ran.err == "AppWrappers that are not in the queue yet: 2; kubectl aw show says why.\n"
    asked = hub.requests("GET", COLLECTION.format(""))
    assert [(each.query["labelSelector"], each.query.get("continue")) for each in asked] == [
        ("app=train", None),
        ("app=train", "more"),
    ]


async def test_amounts_that_a_status_lacks_are_unknown(ask: Run) -> None:
    heading, line, *_ = (await ask("-o", "wide")).out.splitlines()
    at = heading.index("CPU")
    assert line[at:].split() == [
        *("unknown", "unknown", "unknown"),
        *("cluster", "hub:", "cpu:", "needs", "1,", "0", "free"),
        *("unknown", "2", "NoRoom"),
    ]


async def test_queue_is_that_of_the_namespace_of_the_context(ask: Run) -> None:
    assert await ask("--context", "third") == Ran(0, "", "Nothing waits in namespace team-c.\n")
    assert (await ask("--context", "third", "-n", "team-a")).out.startswith("QUEUE")


@pytest.mark.parametrize("flag", ["--context", "--kubeconfig", "--selector"])
async def test_option_of_the_hub_is_refused_if_the_database_is_read(ask: Run, flag: str) -> None:
    ran = await ask(flag, "a", "--database-url", NOWHERE)
    assert (ran.code, ran.out) == (2, "")
    assert f"{flag} is about a kubeconfig, and the database is read: leave it out" in ran.err


async def test_kubeconfig_of_the_environment_is_no_reason_to_refuse(
    ask: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", NOWHERE)
    assert (await ask("-A")).code == 3
    ran = await ask("-A", "--context", "third", "--database-url", "")
    assert (ran.code, ran.out.splitlines()[0]) == (0, TABLE.splitlines()[0])


async def test_node_of_a_tree_needs_the_database(ask: Run) -> None:
    ran = await ask("--queue", "tree/node")
    assert (ran.code, ran.out) == (2, "")
    assert "(TREE/NODE) needs the database: set DISPATCHER_DATABASE_URL or --database-url" in ran.err


async def test_hub_that_does_not_answer_may_answer_later(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", COLLECTION.format(""), hang_up)
    assert (await ask("-A")).code == 3
    hub.on("GET", COLLECTION.format(""), refusal(403, "Forbidden", "appwrappers is forbidden"))
    assert await ask("-A") == Ran(
        1,
        "",
        "dispatcher: the hub does not allow it: appwrappers is forbidden. Leave out -A, or name a namespace with -n\n",
    )
