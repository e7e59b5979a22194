"""Which namespaces a queue serves: by selectors, by labels of namespaces, and by the dispatcher's setting."""

from __future__ import annotations

import pytest

from dispatcher.api.selector import EVERYTHING, Selector, parse_selector
from dispatcher.core.model.record import Pending
from dispatcher.core.queues.access import counted_in, open_to_all, take, to_be_named, why_not_served
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Access, Queue
from tests.builders import make_record

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
