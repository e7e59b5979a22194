"""`dispatcher show`: one AppWrapper from its first event to its last, and those of its name before it."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest

from tests.commands import Ran, Run
from tests.postgres.cli.conftest import Lived
from tests.postgres.cli.lives import FAILED, GONE, WAITING, Lives, shown

MORE = "1 more had that name: --all shows them, -n limits them to one namespace.\n"


@pytest.fixture
def database_url(lived: Lived) -> str:
    """The same database for all tests here, since they only read it."""
    return lived.url


@pytest.fixture
def lives(lived: Lived) -> Lives:
    return lived.lives


async def test_show_gives_the_whole_life_of_a_deleted_appwrapper(run: Run, lives: Lives) -> None:
    ran = await run("show", GONE, "--uid", "-o", "wide")
    assert (ran.code, ran.err) == (0, "")
    assert (
        ran.out
        == f"""\
team-a/train
  State:      Deleted
  Outcome:    completed
  Cluster:    east
  Submitted:  {lives.told(0)}
  Started:    {lives.told(61)}
  Ended:      {lives.told(180)}
  Deleted:    {lives.told(240)}
  Waited:     61m
  Ran:        119m
  Used:       3 cpu-h, 0 GiB-h, 4 gpu-h
  In states:  Queued 60m, Dispatching 30s, Dispatched 30s, Running 119m, Completed 60m
  Queue:      default
  Priority:   0
  Asks for:   1.5 cpu, 0 GiB, 2 gpu, 2 pods
  User:       alice
  UID:        {GONE}

Attempts:
ATTEMPT  CLUSTER  DISPATCHED            STARTED               ENDED                 HELD  OUTCOME    REASON  GPU-H
1        east     {lives.told(60)}  {lives.told(61)}  {lives.told(180)}  2h    completed  -       4

Timeline:
AT                    STATE        FOR   CAUSE         CLUSTER  REASON                 MESSAGE
{lives.told(0)}  Queued       60m   submitted     -        -                      -
{lives.told(5)}  Queued       -     blocked       -        InsufficientResources  lacks 1 cpu
{lives.told(60)}  Dispatching  30s   dispatched    east     -                      -
{shown(lives.at(60) + timedelta(seconds=30))}  Dispatched   30s   created       east     -                      -
{lives.told(61)}  Running      119m  pods-running  east     -                      -
{lives.told(180)}  Completed    60m   completed     east     -                      -
{lives.told(240)}  Deleted      -     deleted       -        -                      -
"""
    )


async def test_show_gives_the_newest_appwrapper_of_a_name_and_mentions_the_others(
    run: Run, lives: Lives
) -> None:
    ran = await run("show", "train", "-o", "json")
    assert ([story["uid"] for story in json.loads(ran.out)], ran.err) == ([WAITING], MORE)


async def test_show_all_gives_every_appwrapper_of_a_name_newest_first(run: Run, lives: Lives) -> None:
    ran = await run("show", "train", "--all", "-o", "json")
    assert ([story["uid"] for story in json.loads(ran.out)], ran.err) == ([WAITING, GONE], "")


async def test_pending_appwrapper_is_shown_with_its_position_and_advice(run: Run, lives: Lives) -> None:
    ran = await run("show", "team-a/train")
    block, timeline = ran.out.split("\n\n")
    assert (block.splitlines()[1:10], ran.err) == (
        [
            "  State:       Queued",
            "  Reason:      InsufficientResources",
            "  Message:     lacks 1 cpu",
            "  Position:    1",
            "  Est. start:  unknown: the database has no snapshot of clusters",
            "  Advice:      Wait: it goes when enough is free; asking for less brings that nearer.",
            f"  Submitted:   {shown(lives.waiting_since)}",
            "  Waited:      3d",
            "  In states:   Queued 3d",
        ],
        "1 more had that name: --all shows them.\n",
    )
    assert [line.split()[1:] for line in timeline.splitlines()[2:]] == [
        ["Queued", "3d", "submitted", "-", "-", "-"],
        ["Queued", "-", "blocked", "-", "InsufficientResources", "lacks", "1", "cpu"],
    ]


async def test_json_has_the_row_of_history_and_all_that_belongs_to_it(run: Run, lives: Lives) -> None:
    (story,) = json.loads((await run("show", "probe", "-o", "json")).out)
    assert [story["uid"], story["reason"], story["waiting"]] == [FAILED, "FoundFailedPods", None]
    assert [(each["state"], each["seconds"]) for each in story["states"][:-1]] == [
        *(("Queued", 300), ("Dispatching", 30), ("Dispatched", 30), ("Running", 840), ("Failing", 900))
    ]
    assert [(each["cluster"], each["outcome"], each["held_s"]) for each in story["attempt_history"]] == [
        ("hub", "failed", 1800)
    ]
    assert [each["to_phase"] for each in story["timeline"]] == [
        *("Queued", "Dispatching", "Dispatched", "Running", "Failing", "Failed")
    ]


async def test_csv_is_the_timeline(run: Run, lives: Lives) -> None:
    ran = await run("show", "train", "--all", "-o", "csv")
    told = list(csv.DictReader(io.StringIO(ran.out)))
    assert [(each["uid"], each["cause"]) for each in told] == [
        (WAITING, "submitted"),
        (WAITING, "blocked"),
        (GONE, "submitted"),
        (GONE, "blocked"),
        (GONE, "dispatched"),
        (GONE, "created"),
        (GONE, "pods-running"),
        (GONE, "completed"),
        (GONE, "deleted"),
    ]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["nobody"], "there is no AppWrapper nobody in any namespace, and there was none"),
        (["train", "-n", "team-b"], "there is no AppWrapper train in namespace team-b, and there was none"),
        (["trian"], "there is no AppWrapper trian in any namespace; did you mean train?"),
        (["train", "--uid"], "there is no AppWrapper of the uid train, and there was none"),
    ],
)
async def test_an_unknown_name_is_a_failure(run: Run, lives: Lives, asked: list[str], why: str) -> None:
    assert await run("show", *asked) == Ran(1, "", f"dispatcher: {why}\n")


@pytest.mark.parametrize("name", ["a/b/c", "/train", "team-a/", "\udcff"], ids=ascii)
async def test_a_name_that_no_appwrapper_can_have_is_wrong_usage(run: Run, name: str) -> None:
    ran = await run("show", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(f"{name!r} is no name of an AppWrapper: write NAME or NAMESPACE/NAME\n")
