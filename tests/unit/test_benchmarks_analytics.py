"""What the benchmark of analytics shows and makes: costs, tables, plans, and the lives a past is made of."""

from __future__ import annotations

import pytest

from benchmarks import lives, plans
from benchmarks.analytics_report import Cost, costs, dispatch_table, spread_alone
from benchmarks.beside import Company, Phase, Tables
from benchmarks.company import Asked
from benchmarks.plans import Access, Node
from benchmarks.processor import Used
from benchmarks.trial import Latency, Load, Rest, Trial
from dispatcher.core.model.records.record import Phase as Stage


def phase(company: Company, per_second: float, cores: float = 0.0, *seconds: float) -> Phase:
    """A hundred AppWrappers."""
    used = Used(100 / per_second, {"dispatcher": 0.5, "postgres": 1.0, "others": 0.25})
    load = Load(100, 0.5, 100 / per_second, per_second, 1.5, 2.5, 200, 10, 2.0, {}, used, {})
    latency = Latency(
        count=10, p50=20.4, p99=48.0, longest=48.0, since_answer_p50=15.0, since_answer_p99=40.0
    )
    trial = Trial(load, Rest(0.0, 0, {}, 0.0), latency, 2**27, 0)
    asked = (Asked("long", list(seconds)),) if seconds else ()
    return Phase(company, trial, cores, asked, Tables(dead_rows=7, bytes=3 * 2**19))


PHASES = [
    phase(Company.NOBODY, 90.0),
    phase(Company.ANALYSTS, 45.0, 0.9, 12.0, 13.5),
    phase(Company.STRANGERS, 50.0, 0.88),
    phase(Company.NOBODY, 110.0),
    phase(Company.ANALYSTS, 60.0, 0.9, 12.0),
    phase(Company.STRANGERS, 60.0, 0.9),
    phase(Company.NOBODY, 90.0),
]


# --- what it comes to --------------------------------------------------------------------------------


def test_costs_are_by_the_mean_of_the_trials_alone_before_and_after() -> None:
    assert costs(PHASES) == [Cost(0.45, 0.5), Cost(0.6, 0.6)]
    assert [each.of_the_database for each in costs(PHASES)] == [0.9, 1.0]


def test_spread_is_that_of_the_trials_alone_by_their_mean() -> None:
    assert spread_alone(PHASES) == pytest.approx(20 / (290 / 3))


def test_table_of_dispatch_has_a_column_for_each_trial_and_tells_what_it_comes_to() -> None:
    table, _, conclusions = dispatch_table(PHASES[:4], [200.0, 200.0]).partition("\n\n")
    lines = {line[:44].strip(): line[44:].split() for line in table.splitlines()}
    assert lines["beside"] == ["nobody", "analysts", "strangers", "nobody"]
    assert lines["dispatched/s, all at once"] == ["90.0", "45.0", "50.0", "110.0"]
    assert lines["cores used by the company"] == ["0.00", "0.90", "0.88", "0.00"]
    assert lines["answers, the longest in s"] == ["2,", "13.5"]
    assert lines["size of these tables, MiB"] == ["1.5"] * 4
    assert conclusions.splitlines() == [
        "floor before / after, gangs/s: 200.0 / 200.0; alone, by the mean floor: 0.50",
        "beside analysts, by alone: 0.45 (0.45)",
        "beside strangers as busy, by alone: 0.50 (0.50)",
        "what the database's work costs (the one by the other): 0.90 (0.90)",
        "trials alone lie within 20% of their mean: less is noise",
    ]


# --- plans -------------------------------------------------------------------------------------------


def scan(kind: str, table: str, cost: float = 1000.0) -> Node:
    return {"Node Type": kind, "Relation Name": table, "Total Cost": cost}


def test_partitions_count_for_their_table_and_what_is_next_to_empty_does_not_count() -> None:
    parts = [
        scan("Index Scan", "event_2026_01"),
        scan("Bitmap Heap Scan", "event_2026_02"),
        scan("Seq Scan", "event_2026_03"),
        scan("Seq Scan", "event_default", 0.0),
    ]
    plan = {"Node Type": "Sort", "Plans": [{"Node Type": "Append", "Plans": parts}]}
    assert plans.accesses(plan, scan("Seq Scan", "attempt")) == {
        "attempt": Access(whole=1),
        "event": Access(by_index=2, whole=1),
    }
    assert plans.relations(plan) == {"event_2026_01", "event_2026_02", "event_2026_03", "event_default"}


# --- the past ----------------------------------------------------------------------------------------


def test_shares_of_the_lives_of_the_past_are_all_there_is() -> None:
    assert sum(each.share for each in lives.LIVES) == 100


@pytest.mark.parametrize("life", lives.LIVES, ids=lambda each: each.name)
def test_every_life_of_the_past_is_over_and_nothing_in_it_happens_before_what_went_before(
    life: lives.Life,
) -> None:
    moments = [row["moment"] for row in lives.step_rows(life)]
    assert life.end.phase is Stage.DELETED
    assert moments == sorted(moments)
    assert all(each["ended_at"] for each in lives.attempt_rows(life))


def test_the_past_has_every_way_in_which_an_attempt_ends_but_those_a_user_asks_for() -> None:
    outcomes = {row["outcome"] for life in lives.LIVES for row in lives.attempt_rows(life)}
    assert outcomes == {"completed", "failed", "evicted", "postponed", "lost", "deleted"}


def test_patterns_have_a_mark_for_every_time() -> None:
    found = [row["change"] for life in lives.LIVES for row in lives.step_rows(life)]
    assert all("2000-01" not in each for each in found)
    assert f'"phase_since":"{lives.AT}"' in found[0]
