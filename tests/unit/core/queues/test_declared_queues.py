"""All declared queues as one value: their order, malformed ones, and MCAD's trees beside them."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.selector import EVERYTHING
from dispatcher.core.queues.declared_queues import (
    DeclaredQueues,
    DispatchQueue,
    last_valid,
    read_dispatch_queue,
)
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Queue, QueueingStrategy, Quota
from dispatcher.core.queues.quota_subtrees import MCAD_PREEMPTION, Problem

Json = dict[str, Any]
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def declared(name: str, created: str = EARLY, **spec: object) -> DispatchQueue:
    return read_dispatch_queue({"metadata": {"name": name}, "spec": spec}, name, f"uid-of-{name}", created)


def subtree(name: str, tree: str, *nodes: str, **spec: object) -> Json:
    children = [{"name": node, "quotas": {"requests": {"cpu": 1}}} for node in nodes]
    return {
        "apiVersion": "quota.codeflare.dev/v1alpha1",
        "metadata": {"namespace": "kube-system", "name": name, "labels": {"tree": tree}},
        "spec": {"children": children, **spec},
    }


def test_nothing_declared_is_one_queue_without_limits() -> None:
    defaults = Defaults(QueueingStrategy.STRICT_FIFO, timedelta(seconds=7))
    found = DeclaredQueues.of([], [], defaults)
    assert found == DeclaredQueues(Forest.of([], defaults))
    assert found.forest.places["default"].starvation_bound == timedelta(seconds=7)
    assert DeclaredQueues() == DeclaredQueues.of([], [])


def test_order_of_declaration_is_by_creation_then_name_whatever_the_order_of_the_list() -> None:
    queues = [declared("b"), declared("a", LATE), declared("c"), declared("default", LATE)]
    for each in itertools.permutations(queues):
        found = DeclaredQueues.of(each, [])
        assert [place.name for place in found.forest.leaves] == ["b", "c", "a", "default"]
        assert found.is_declared


def test_trees_of_mcad_follow_the_dispatch_queues() -> None:
    found = DeclaredQueues.of(
        [declared("team")],
        [
            subtree("root", "context", "all"),
            subtree("below", "context", "gold", "default", parent="all"),
            subtree("other", "service", "default"),
        ],
    )
    assert found.trees == ("context", "service")
    assert list(found.forest.places) == [
        "team",
        "context/gold",
        "context/default",
        "service/default",
        "context/all",
        "default",
    ]
    assert found.forest.places["context/gold"].queue == Queue(
        "context/gold",
        "context/all",
        {"cpu": Quota(1000)},
        preemption=MCAD_PREEMPTION,
        namespace_selector=EVERYTHING,
    )


def test_malformed_queue_is_no_queue_and_the_queues_below_it_wait() -> None:
    bad = declared("bad", weight="much")
    found = DeclaredQueues.of([bad, declared("below", parent="bad"), declared("good")], [])
    assert bad.error == 'spec.weight: must be a decimal number of at least 0, not "much"'
    assert set(found.forest.places) == {"good", "default"}
    assert found.forest.problems == {"bad": "Malformed", "below": "ParentNotFound"}
    assert found.malformed == {"bad": bad.error}


def test_malformed_declaration_of_the_default_queue_does_not_lift_its_limits() -> None:
    found = DeclaredQueues.of([declared("default", resources={"cpu": {}})], [])
    assert (dict(found.forest.places), found.forest.problems) == ({}, {"default": "Malformed"})
    assert found.is_declared


def test_malformed_subtree_still_has_its_tree() -> None:
    found = DeclaredQueues.of([], [subtree("bad", "context", "")])
    problem = "spec.children[0].name: must have 1 to 253 characters"
    assert found.problems == (Problem("kube-system/bad", problem),)
    assert (found.trees, found.is_declared) == (("context",), True)


@pytest.mark.parametrize("document", [{}, {"spec": 3}, {"metadata": None, "spec": {"parent": "a"}}])
def test_any_json_is_read(document: Json) -> None:
    assert read_dispatch_queue(document, "a", "u", EARLY).error


# --- held queues: not valid, and not surely gone ----------------------------------------------------------------

GOLD = Queue("context/gold", None, {"cpu": Quota(1000)})


@pytest.mark.parametrize(
    ("there", "lingering", "held", "problem"),
    [
        pytest.param([declared("org")], {"team"}, "team", None, id="lingers"),
        pytest.param(
            [declared("org"), declared("team", weight="much")], (), "team", "Malformed", id="is-malformed"
        ),
        pytest.param(
            [declared("org"), declared("team", parent="orgg")], (), "team", "ParentNotFound", id="misspelt"
        ),
        pytest.param(
            [declared("org")], {"context/", "context/gold"}, "context/gold", None, id="node-lingers"
        ),
    ],
)
def test_queue_that_is_not_surely_gone_counts_for_quota_by_its_last_valid_declaration(
    there: list[DispatchQueue], lingering: set[str], held: str, problem: str | None
) -> None:
    last = {"team": Queue("team", "org", {"cpu": Quota(4000)}), GOLD.name: GOLD}
    forest = DeclaredQueues.of(there, [], lingering=lingering, last=last).forest
    assert forest.held == (last[held],)
    assert (held in forest.places, forest.problems.get(held)) == (False, problem)
    assert list(forest.for_quota.places) == [*forest.places, held]


@pytest.mark.parametrize(
    ("there", "lingering", "last"),
    [
        pytest.param([declared("org")], (), {"team": Queue("team", "org")}, id="surely-gone"),
        pytest.param([declared("org")], {"team"}, {}, id="never-valid"),
        pytest.param([declared("org")], {"team"}, {"team": Queue("team", "group")}, id="its-path-is-gone"),
        pytest.param(
            [declared("org")],
            {"a", "b"},
            {"a": Queue("a", "b"), "b": Queue("b", "a")},
            id="circle-of-two-times",
        ),
        pytest.param([declared("team")], {"team"}, {"team": Queue("team", "org")}, id="it-is-back"),
    ],
)
def test_other_queues_are_not_held(
    there: list[DispatchQueue], lingering: Collection[str], last: dict[str, Queue]
) -> None:
    forest = DeclaredQueues.of(there, [], lingering=lingering, last=last).forest
    assert forest.held == ()
    assert forest.for_quota.places == forest.places


def test_queues_that_held_queues_are_below_are_held_too() -> None:
    last = {"group": Queue("group", "org"), "team": Queue("team", "group", {"cpu": Quota(1)})}
    there = [declared("org"), declared("team", parent="group")]
    forest = DeclaredQueues.of(there, [], lingering={"group"}, last=last).forest
    assert [each.name for each in forest.held] == ["group", "team"]
    assert forest.for_quota.places["team"].path == ("team", "group", "org")
    assert forest.charged_in == {"group": "org", "team": "org"}


def test_keys_of_all_that_is_there() -> None:
    found = DeclaredQueues.of([declared("team")], [subtree("s", "context", "gold", "")])
    assert found.there == {"team", "context/", "context/gold"}
    assert found.unread == {"context"}


VALID = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys("abc", st.sampled_from([None, "a", "b"]))))


@given(VALID)
def test_last_valid_declarations_are_those_of_the_last_time(times: list[dict[str, str | None]]) -> None:
    """A leader that sees one forest after the other knows the same as one that reads all at once."""
    forests = [[Queue(name, parent) for name, parent in each.items()] for each in times]
    seen: dict[str, Queue] = {}
    for each in forests:
        seen.update(last_valid([each]))
    assert last_valid(forests) == seen
    for name, queue in seen.items():
        (*_, last) = (each[name] for each in times if name in each)
        assert queue.parent == last
