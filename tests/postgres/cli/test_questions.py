"""What waits, what became of it, what was used, how long was waited: as a person is told, and as a program is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.cli.screens.tables import relative
from tests.commands import Ran, Run
from tests.postgres.changes import rows_of
from tests.postgres.cli.conftest import Lived
from tests.postgres.cli.lives import FAILED, GONE, WAITING, Lives

ADVICE = "Wait: it goes when enough is free; asking for less brings that nearer."
QUESTIONS = [
    ["queue"],
    ["history", "--since", "4w"],
    ["show", "train"],
    ["usage", "--since", "4w"],
    ["waits", "--since", "4w"],
]


@pytest.fixture
def database_url(lived: Lived) -> str:
    """The same database for all tests here, since they only read it."""
    return lived.url


@pytest.fixture
def lives(lived: Lived) -> Lives:
    return lived.lives


async def test_the_queue_is_listed_in_its_order(run: Run, lives: Lives) -> None:
    assert await run("queue") == Ran(
        0,
        "QUEUE  POSITION  NAME          USER   PRIORITY  WAITED  GPU  REASON                 EST START\n"
        "night  1         team-a/train  alice  7         3d      2    InsufficientResources  unknown\n",
    )


async def test_the_wide_queue_shows_demand_message_and_advice(run: Run, lives: Lives) -> None:
    heading, line = (await run("queue", "-o", "wide")).out.splitlines()
    at = heading.index("CPU")
    assert [heading[at:], line[at:]] == [
        f"CPU  MEMORY GIB  PODS  MESSAGE      {'ADVICE':{len(ADVICE)}}  BLOCKING CLUSTERS",
        f"1.5  0           2     lacks 1 cpu  {ADVICE}  1 InsufficientResources",
    ]


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ([], 1),
        (["-n", "team-a", "--user", "alice", "--queue", "night"], 1),
        (["-n", "team-b"], 0),
        (["--user", "bob"], 0),
        (["--queue", "default"], 0),
        (["--queue", "' OR true --"], 0),
    ],
)
async def test_the_queue_may_be_narrowed(run: Run, lives: Lives, asked: list[str], count: int) -> None:
    assert len(json.loads((await run("queue", "-o", "json", *asked)).out)) == count


async def test_an_empty_queue_is_an_answer(
    run: Run, make_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", make_database())
    assert await run("queue") == Ran(0, "", "Nothing waits.\n")


async def test_json_and_csv_have_the_columns_of_the_view_and_the_start(
    run: Run, lives: Lives, database_url: str
) -> None:
    (names,) = rows_of(
        database_url,
        "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute "
        "WHERE attrelid = 'history.queue_now'::regclass AND attnum > 0",
    )
    (line,) = json.loads((await run("queue", "-o", "json")).out)
    columns = [name for name in names[0] if name != "est_start"] + ["estimated_start", "estimate_unknown"]
    assert [*line] == columns
    unknown = line["estimated_start"], line["estimate_unknown"]
    assert unknown == (None, "the database has no snapshot of clusters")
    assert (line["gpu"], line["cpu"], line["demand"], line["position"]) == (
        2,
        1.5,
        {"cpu": 1500, "nvidia.com/gpu": 2},
        1,
    )
    assert datetime.fromisoformat(line["submitted_at"]) == lives.waiting_since
    heading, told = csv.reader(io.StringIO((await run("queue", "-o", "csv")).out))
    assert (heading, told[columns.index("demand")]) == (columns, '{"cpu": 1500, "nvidia.com/gpu": 2}')


async def test_history_shows_the_outcome_of_each_appwrapper(run: Run, lives: Lives) -> None:
    def age(minutes: int) -> str:
        return relative(lives.at(minutes), datetime.now(UTC))

    assert await run("history", "--since", "4w") == Ran(
        0,
        "NAME          USER    SUBMITTED  STATE    OUTCOME    REASON                 CLUSTER  WAITED  RAN   "
        "GPU  GPU-H\n"
        "team-a/train  alice   3d         Queued   -          InsufficientResources  -        "
        "3d      0s    2    0\n"
        f"team-b/probe  team-b  {age(10):9}  Failed   failed     FoundFailedPods        hub      "
        "6m      29m   2    1\n"
        f"team-a/train  alice   {age(0):9}  Deleted  completed  -                      east     "
        "61m     119m  2    4\n",
    )


@pytest.mark.parametrize(
    ("asked", "uids"),
    [
        (["--since", "7d"], [WAITING]),
        (["--state", "failed"], [FAILED]),
        (["--outcome", "completed"], [GONE]),
        (["--user", "alice", "-n", "team-a"], [WAITING, GONE]),
        (["--user", "alice", "-A"], [WAITING, GONE]),
        (["--queue", "night"], [WAITING]),
        (["--until", "7d"], [FAILED, GONE]),
    ],
)
async def test_history_may_be_narrowed(run: Run, lives: Lives, asked: list[str], uids: list[str]) -> None:
    told = json.loads((await run("history", "--since", "4w", "-o", "json", *asked)).out)
    assert [each["uid"] for each in told] == uids


async def test_the_window_of_history_includes_appwrappers_that_overlap_it(run: Run, lives: Lives) -> None:
    window = ["--since", lives.at(100).isoformat(), "--until", lives.at(120).isoformat()]
    told = json.loads((await run("history", "-o", "json", *window)).out)
    assert [each["uid"] for each in told] == [GONE]


async def test_history_with_a_limit_says_that_appwrappers_are_left_out(run: Run, lives: Lives) -> None:
    more = "--limit 1 leaves AppWrappers out: raise it, or narrow the window.\n"
    ran = await run("history", "--since", "4w", "--limit", "1")
    assert (ran.code, len(ran.out.splitlines()), ran.err) == (0, 2, more)
    ran = await run("history", "--since", "4w", "--limit", "3")
    assert (ran.code, len(ran.out.splitlines()), ran.err) == (0, 4, "")


async def test_no_history_is_an_answer(run: Run) -> None:
    window = ["--since", "2025-11-01", "--until", "2025-11-02"]
    assert await run("history", *window) == Ran(
        0, "", "There was none from 2025-11-01T00:00:00Z to 2025-11-02T00:00:00Z.\n"
    )


async def test_usage_is_grouped_by_the_given_dimensions(run: Run, lives: Lives) -> None:
    assert await run("usage", "--since", "4w") == Ran(
        0,
        "NAMESPACE  CPU-H  GIB-H  GPU-H  GPU %\n"
        "team-a     3      0      4      80\n"
        "team-b     0.75   0      1      20\n",
    )
    assert await run("usage", "--since", "4w", "--by", "cluster", "--by", "user", "--per", "day") == Ran(
        0,
        "DAY         CLUSTER  USER    CPU-H  GIB-H  GPU-H  GPU %\n"
        f"{lives.start:%Y-%m-%d}  east     alice   3      0      4      80\n"
        f"{lives.start:%Y-%m-%d}  hub      team-b  0.75   0      1      20\n",
    )


async def test_usage_of_an_hour_is_the_capacity_held_in_it(run: Run, lives: Lives) -> None:
    window = ["--since", lives.at(30).isoformat(), "--until", lives.at(110).isoformat()]
    ran = await run("usage", "--by", "queue", "--per", "hour", "-o", "json", *window)
    hours = [lives.start, lives.start + timedelta(hours=1)]
    assert json.loads(ran.out) == [
        {
            "hour": hour.isoformat(),
            "queue": "default",
            "cpu_h": cpu,
            "memory_gib_h": 0,
            "gpu_h": gpu,
            "gpu_percent": 100,
        }
        for hour, cpu, gpu in zip(hours, (0.75, 1.5), (1, 2), strict=True)
    ]


async def test_no_use_is_an_answer(run: Run) -> None:
    ran = await run("usage", "--since", "2025-11-01", "--until", "2025-11-02")
    assert ran == Ran(0, "", "Nothing was used from 2025-11-01T00:00:00Z to 2025-11-02T00:00:00Z.\n")


async def test_waits_are_grouped_by_day_queue_and_number_of_gpus(run: Run, lives: Lives) -> None:
    assert await run("waits", "--since", "4w") == Ran(
        0,
        "DAY         QUEUE    NAMESPACE  GPUS  COUNT  P50  P90  P95  P99  MAX  STILL WAITING  OLDEST\n"
        f"{lives.waiting_since:%Y-%m-%d}  night    team-a     2     1      3d   3d   3d   3d   3d   1              3d\n"
        f"{lives.start:%Y-%m-%d}  default  team-a     2     1      61m  61m  61m  61m  61m  0              -\n"
        f"{lives.start:%Y-%m-%d}  default  team-b     2     1      6m   6m   6m   6m   6m   0              -\n",
    )
    told = json.loads((await run("waits", "--since", "4w", "-n", "team-b", "-o", "json")).out)
    assert [each["p50_s"] for each in told] == [360]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: str(question[0]))
async def test_every_question_gives_the_reader_the_same_answer(
    run: Run, lives: Lives, reader_url: str, question: list[str]
) -> None:
    told = await run(*question, "--database-url", reader_url)
    assert (told.code, told.out != "") == (0, True)
    assert await run(*question) == told


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: str(question[0]))
async def test_a_database_that_is_not_there_is_to_be_tried_again(run: Run, question: list[str]) -> None:
    ran = await run(*question, "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert (ran.code, ran.out) == (3, "")


@pytest.mark.parametrize(
    "asked",
    [["sql", "SELECT '\udcff'"], ["queue", "--user", "\udcff"]],
    ids=lambda asked: asked[0],
)
async def test_argument_that_is_not_utf_8_is_refused(run: Run, asked: list[str]) -> None:
    ran = await run(*asked)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("an argument is not UTF-8\n")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT user_name, sum(gpu_h) FROM usage_hourly GROUP BY 1 ORDER BY 2 DESC",
        "SELECT DISTINCT viewname FROM pg_views WHERE schemaname = current_schema",
    ],
)
async def test_the_queries_of_the_help_run(run: Run, query: str) -> None:
    assert query in (await run("sql", "--help")).out
    assert (await run("sql", query)).code == 0


@pytest.mark.parametrize("options", [("-n", "team-a", "-A"), ("-A", "-n", "team-a")], ids=" ".join)
@pytest.mark.parametrize("command", ["history", "usage", "waits"])
async def test_one_namespace_and_all_of_them_contradict_each_other(
    run: Run, command: str, options: tuple[str, ...]
) -> None:
    ran = await run(command, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("give -n or -A, not both\n")
