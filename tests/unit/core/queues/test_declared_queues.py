"""All declared queues as one value: their order, malformed ones, and MCAD's trees beside them."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.selector import EVERYTHING
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue, read_dispatch_queue
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
