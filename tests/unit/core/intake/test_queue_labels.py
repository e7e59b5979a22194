"""The queues that labels name: whose label counts, and which labels are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.names import KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, QUEUE_LABEL
from dispatcher.core.intake.labels import MOST_LABELS, kept_labels, naming_queues, queues_of
from dispatcher.text import LONGEST_NAME

OURS, KUEUES, KAIS = {QUEUE_LABEL: "ours"}, {KUEUE_QUEUE_LABEL: "kueues"}, {KAI_QUEUE_LABEL: "kais"}
THERE = {QUEUE_LABEL: "of-namespace"}


@pytest.mark.parametrize(
    ("labels", "of_namespace", "trees", "expected"),
    [
        pytest.param({}, {}, (), ("default",), id="none"),
        pytest.param(OURS, {}, (), ("ours",), id="ours"),
        pytest.param(KUEUES, {}, (), ("kueues",), id="kueues"),
        pytest.param(KAIS, {}, (), ("kais",), id="kais"),
        pytest.param({**KAIS, **KUEUES, **OURS}, {}, (), ("ours",), id="ours-first"),
        pytest.param({**KAIS, **KUEUES}, {}, (), ("kueues",), id="kueues-before-kais"),
        pytest.param({}, {**KAIS, **KUEUES}, (), ("kueues",), id="namespace-in-the-same-order"),
        pytest.param(KAIS, THERE, (), ("kais",), id="any-of-its-own-before-the-namespace"),
        pytest.param({QUEUE_LABEL: ""}, {}, (), ("default",), id="empty-is-absent"),
        pytest.param({**KAIS, QUEUE_LABEL: ""}, THERE, (), ("kais",), id="empty-before-another"),
        pytest.param({QUEUE_LABEL: "Team_A"}, {}, (), ("Team_A",), id="no-name-of-an-object"),
        pytest.param({}, {}, ("context",), ("default", "context/default"), id="node-default"),
        pytest.param(
            {**OURS, "service": "gold", "tree": "x"},
            {},
            ("context", "service"),
            ("ours", "context/default", "service/gold"),
            id="one-in-each-tree",
        ),
        pytest.param(
            {}, {"context": "gold"}, ("context",), ("default", "context/default"), id="trees-by-itself"
        ),
    ],
)
def test_queues_are_those_of_the_first_label_and_one_in_each_tree(
    labels: dict[str, str], of_namespace: dict[str, str], trees: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert queues_of(labels, of_namespace, trees) == expected
    assert queues_of(kept_labels(labels), of_namespace, trees) == expected


def test_labels_with_another_prefix_are_not_kept() -> None:
    labels = {**OURS, **KUEUES, **KAIS, "context": "gold", "app.kubernetes.io/name": "x", "a/b": "c"}
    assert kept_labels(labels) == {**OURS, **KUEUES, **KAIS, "context": "gold"}


def test_few_of_many_labels_are_kept_whatever_their_order() -> None:
    many = {f"label-{number:05}": "x" for number in range(10_000)}
    kept = kept_labels({**many, **OURS})
    assert len(kept) == MOST_LABELS + 1
    assert kept == kept_labels(dict(reversed({**many, **OURS}.items())))


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.integers(), st.text()), max_size=4))
def test_kept_values_are_bounded_lines(labels: dict[str, object]) -> None:
    found = kept_labels({**labels, QUEUE_LABEL: "a\nb" * 10_000})
    assert all(len(each) <= LONGEST_NAME and each.isprintable() for each in found.values())
    assert all(each for each in queues_of(found, {}, ()))


def test_only_labels_that_name_queues_are_stored_of_namespaces() -> None:
    namespaces = {"a": {**OURS, "tier": "gold"}, "b": {"tier": "gold"}, "c": {**KUEUES, **KAIS}, "d": {}}
    found = naming_queues(namespaces)
    assert found == {"a": OURS, "c": {**KUEUES, **KAIS}}
    assert all(
        queues_of({}, found.get(name, {}), ()) == queues_of({}, labels, ())
        for name, labels in namespaces.items()
    )
