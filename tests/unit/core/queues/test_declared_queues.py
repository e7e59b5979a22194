"""All declared queues as one value: their order, malformed ones, and MCAD's trees beside them."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.selector import EVERYTHING, Selector, parse_selector
from dispatcher.core.model.records.record import Pending
from dispatcher.core.queues.access import counted_in, open_to_all, take, to_be_named, why_not_served
from dispatcher.core.queues.declared_queues import (
    DeclaredQueues,
    DispatchQueue,
    last_valid,
    read_dispatch_queue,
)
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Access, Queue, QueueingStrategy, Quota
from dispatcher.core.queues.quota_subtrees import MCAD_PREEMPTION, Problem
from tests.builders import make_record

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
    assert found == DeclaredQueues(Forest.undeclared(defaults))
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
    assert found.invalid == (bad.queue, Queue("below", "bad"))


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
    declared = DeclaredQueues.of(there, [], lingering=lingering, last=last)
    forest = declared.forest
    assert forest.held == (last[held],)
    assert declared.not_valid_now({**last, "org": Queue("org")}) == tuple(last.values())
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


# -----------------------------------------------------------------------------------------------------------
# Which namespaces a queue serves: by selectors, by labels of namespaces, and by the dispatcher's setting.


OURS = "dispatcher.codeflare.dev/queue"
KUEUE = "kueue.x-k8s.io/queue-name"
VISION = parse_selector("team=vision", "namespaceSelector")


def forest(access: Access, *queues: Queue, has_default: bool = False) -> Forest:
    return Forest.of(queues, Defaults(access=access), has_default=has_default)


@pytest.mark.parametrize(
    ("access", "selector", "labels", "is_served"),
    [
        (Access.SELECTED, None, {}, False),
        (Access.SELECTED, None, {"team": "vision"}, False),
        (Access.SELECTED, None, {OURS: "gold"}, True),
        (Access.SELECTED, None, {KUEUE: "gold"}, True),
        (Access.SELECTED, None, {OURS: "silver"}, False),
        (Access.SELECTED, None, {OURS: "silver", KUEUE: "gold"}, False),
        (Access.SELECTED, EVERYTHING, {}, True),
        (Access.SELECTED, VISION, {"team": "vision"}, True),
        (Access.SELECTED, VISION, {"team": "speech"}, False),
        (Access.SELECTED, VISION, {OURS: "gold"}, False),
        (Access.OPEN, None, {}, True),
        (Access.OPEN, EVERYTHING, {}, True),
        (Access.OPEN, VISION, {"team": "speech"}, False),
    ],
)
@pytest.mark.parametrize("is_inherited", [False, True])
def test_queue_serves_the_namespaces_that_an_operator_named(
    access: Access, selector: Selector | None, labels: dict[str, str], *, is_served: bool, is_inherited: bool
) -> None:
    root = Queue("root", namespace_selector=selector if is_inherited else None)
    leaf = Queue("gold", "root", namespace_selector=None if is_inherited else selector)
    place = forest(access, root, leaf).places["gold"]
    assert (why_not_served(place, "lab", labels) == "") is is_served


def test_refusal_names_the_queue_and_the_remedy() -> None:
    place = forest(Access.SELECTED, Queue("gold")).places["gold"]
    assert why_not_served(place, "lab", {}) == (
        "queue gold has no namespaceSelector, and namespace lab has no label dispatcher.codeflare.dev/queue that "
        "names it: an operator writes one of them"
    )


@pytest.mark.parametrize(
    ("access", "opened", "named"),
    [(Access.OPEN, ["default", "plain"], []), (Access.SELECTED, [], ["plain"])],
)
def test_queues_without_a_selector_on_their_path_are_told(
    access: Access, opened: list[str], named: list[str]
) -> None:
    queues = (
        Queue("root", namespace_selector=EVERYTHING),
        Queue("below", "root"),
        Queue("chosen", namespace_selector=VISION),
        Queue("plain"),
    )
    places = forest(access, *queues, has_default=True).places.values()
    assert (open_to_all(places), to_be_named(places)) == (opened, named)


NO_NAMESPACE = Pending("NamespaceNotAllowed", "")
NO_QUEUE = Pending("QueueNotFound", "")
NO_QUOTA = Pending("InsufficientQuota", "")


@pytest.mark.parametrize(
    ("pending", "leaves", "counted"),
    [
        (None, ("gold", "lost"), ("gold", "lost")),
        (NO_QUOTA, ("gold",), ("gold",)),
        (NO_NAMESPACE, ("gold",), ()),
        (NO_QUEUE, ("gold", "lost"), ("lost",)),
        (NO_QUEUE, ("gold", "nowhere"), ("nowhere",)),
        (Pending("QueueNotLeaf", ""), ("root",), ()),
    ],
)
def test_waiting_gang_counts_only_in_queues_that_take_it_or_are_not_valid_now(
    pending: Pending | None, leaves: tuple[str, ...], counted: tuple[str, ...]
) -> None:
    known = forest(Access.OPEN, Queue("root"), Queue("gold", "root"), Queue("lost", "nobody"))
    record = make_record(queue=leaves[0], more_queues=leaves[1:], pending=pending)
    assert counted_in(record, known) == counted


@pytest.mark.parametrize(
    ("leaves", "labels", "is_taken"),
    [
        (["gold"], {"team": "vision"}, True),
        (["gold"], {"team": "speech"}, False),
        (["gold", "held"], {"team": "vision"}, True),
        (["held"], {"team": "speech"}, False),
        (["root"], {"team": "vision"}, False),
        (["gold", "nowhere"], {"team": "vision"}, False),
    ],
)
def test_queues_take_gangs_of_namespaces_that_they_serve_or_served_last(
    leaves: list[str], labels: dict[str, str], *, is_taken: bool
) -> None:
    queues = Queue("root", namespace_selector=VISION), Queue("gold", "root")
    known = forest(Access.SELECTED, *queues).charging({}, [Queue("held", "root")])
    assert take(known, leaves, "lab", labels) is is_taken


@pytest.mark.parametrize(
    ("access", "names", "has_default"),
    [
        (Access.OPEN, ["gold"], True),
        (Access.OPEN, [], True),
        (Access.SELECTED, ["gold"], False),
        (Access.SELECTED, ["gold", "default"], True),
        (Access.SELECTED, [], True),
    ],
)
def test_undeclared_default_is_closed_once_queues_are_declared(
    access: Access, names: list[str], *, has_default: bool
) -> None:
    declared = DeclaredQueues.of([DispatchQueue(Queue(each)) for each in names], (), Defaults(access=access))
    assert ("default" in declared.forest.places) is has_default


def test_implied_default_serves_every_namespace_beside_mcad_trees() -> None:
    tree = {
        "apiVersion": "quota.codeflare.dev/v1alpha1",
        "metadata": {"namespace": "kube-system", "name": "t", "labels": {"tree": "context"}},
        "spec": {"children": [{"name": "gold"}]},
    }
    declared = DeclaredQueues.of((), (tree,), Defaults(access=Access.SELECTED))
    assert {name: why_not_served(place, "lab", {}) for name, place in declared.forest.places.items()} == {
        "context/gold": "",
        "default": "",
    }
