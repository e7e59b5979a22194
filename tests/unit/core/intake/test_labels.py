"""What labels name: queues, and classes of priority."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.api.names import (
    KAI_QUEUE_LABEL,
    KUEUE_PRIORITY_LABEL,
    KUEUE_QUEUE_LABEL,
    PRIORITY_LABEL,
    QUEUE_LABEL,
)
from dispatcher.core.intake.labels import (
    MOST_LABELS,
    ChangedClasses,
    PriorityClasses,
    ResolvedPriority,
    class_name,
    kept_labels,
    naming_queues,
    queues_of,
)
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


# --- The priority of an AppWrapper, by its spec or by the class that its labels name -----------------------


CLASSES = PriorityClasses(
    of_workloads={"both": 1, "kueues": -2},
    of_pods={"both": 10, "train": 50, "zero": 0, "polite": 90, "kueues": 5},
    never_preempting=frozenset({"polite", "kueues"}),
)
KUEUES_CLASS, KAIS_CLASS = KUEUE_PRIORITY_LABEL, PRIORITY_LABEL


def unknown(name: str, key: str) -> ResolvedPriority:
    said = (
        f"there is no PriorityClass {name}, which label {key} names: "
        "the priority counts as 0, and no gang is preempted for it"
    )
    return ResolvedPriority(0, said, never_preempts=True)


@pytest.mark.parametrize(
    ("written", "labels", "expected"),
    [
        pytest.param(0, {}, ResolvedPriority(0), id="nothing"),
        pytest.param(7, {}, ResolvedPriority(7), id="written"),
        pytest.param(7, {KAIS_CLASS: "train"}, ResolvedPriority(7), id="written-before-a-class"),
        pytest.param(
            -7,
            {KAIS_CLASS: "none"},
            ResolvedPriority(-7),
            id="written-before-an-unknown-class",
        ),
        pytest.param(0, {KAIS_CLASS: "train"}, ResolvedPriority(50), id="kais"),
        pytest.param(0, {KUEUES_CLASS: "train"}, ResolvedPriority(50), id="kueues-of-kubernetes"),
        pytest.param(0, {KUEUES_CLASS: "kueues"}, ResolvedPriority(-2), id="kueues"),
        pytest.param(0, {KUEUES_CLASS: "both"}, ResolvedPriority(1), id="kueues-class-before-kubernetes"),
        pytest.param(0, {KAIS_CLASS: "both"}, ResolvedPriority(1), id="kueues-class-first-for-any-label"),
        pytest.param(
            0, {KUEUES_CLASS: "kueues", KAIS_CLASS: "train"}, ResolvedPriority(-2), id="kueues-label-first"
        ),
        pytest.param(0, {KUEUES_CLASS: "", KAIS_CLASS: "train"}, ResolvedPriority(50), id="empty-is-absent"),
        pytest.param(0, {KAIS_CLASS: "polite"}, ResolvedPriority(90, never_preempts=True), id="polite-kais"),
        pytest.param(
            0, {KUEUES_CLASS: "polite"}, ResolvedPriority(90, never_preempts=True), id="polite-kueues"
        ),
        pytest.param(
            7, {KAIS_CLASS: "polite"}, ResolvedPriority(7, never_preempts=True), id="polite-and-written"
        ),
        pytest.param(0, {KAIS_CLASS: "zero"}, ResolvedPriority(0), id="class-of-zero"),
        pytest.param(0, {KAIS_CLASS: "none"}, unknown("none", KAIS_CLASS), id="unknown"),
        pytest.param(
            0,
            {KUEUES_CLASS: "none", KAIS_CLASS: "train"},
            unknown("none", KUEUES_CLASS),
            id="unknown-of-the-first",
        ),
    ],
)
def test_priority_is_that_of_the_spec_or_else_of_the_class(
    written: int, labels: dict[str, str], expected: ResolvedPriority
) -> None:
    assert CLASSES.resolve(written, labels) == expected
    assert CLASSES.resolve(written, kept_labels(labels)) == expected


def test_labels_of_a_class_are_kept_among_many() -> None:
    many = {f"label-{number:05}": "x" for number in range(1000)}
    kept = kept_labels({**many, KAIS_CLASS: "train"})
    assert class_name(kept) == "train"
    assert class_name(kept_labels({**many, KUEUES_CLASS: "kueues", KAIS_CLASS: "train"})) == "kueues"
    assert class_name(kept_labels(many)) == ""


@pytest.mark.parametrize(
    ("written", "name", "is_unsure"),
    [(0, "none", True), (7, "none", True), (0, "train", False), (0, "kueues", False), (7, "polite", False)],
)
def test_only_a_class_that_is_not_there_may_be_gone_for_a_moment(
    written: int, name: str, is_unsure: bool
) -> None:
    some = replace(CLASSES, are_all=False)
    assert some.resolve(written, {KAIS_CLASS: name}) == replace(
        CLASSES.resolve(written, {KAIS_CLASS: name}), is_unsure=is_unsure
    )
    assert not CLASSES.resolve(written, {KAIS_CLASS: name}).is_unsure
    assert some.resolve(written, {}) == ResolvedPriority(written)


@pytest.mark.parametrize(
    ("changed", "concerned"),
    [
        pytest.param(ChangedClasses(frozenset()), "", id="none"),
        pytest.param(ChangedClasses(frozenset({"a"})), "a", id="named"),
        pytest.param(ChangedClasses(frozenset({"a"}), frozenset({"a", "b"})), "ac", id="and-the-unknown"),
    ],
)
def test_changed_classes_concern_those_who_name_them(changed: ChangedClasses, concerned: str) -> None:
    assert "".join(filter(changed.concern, "abc")) == concerned
    assert not changed.concern("")
