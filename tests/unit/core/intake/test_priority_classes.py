"""The priority of an AppWrapper, by its spec or by the class that its labels name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.api.names import KUEUE_PRIORITY_LABEL, PRIORITY_LABEL
from dispatcher.core.intake.labels import (
    ChangedClasses,
    PriorityClasses,
    ResolvedPriority,
    class_name,
    kept_labels,
)

CLASSES = PriorityClasses(
    of_workloads={"both": 1, "kueues": -2},
    of_pods={"both": 10, "train": 50, "zero": 0, "polite": 90, "kueues": 5},
    never_preempting=frozenset({"polite", "kueues"}),
)
KUEUES, KAIS = KUEUE_PRIORITY_LABEL, PRIORITY_LABEL


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
        pytest.param(7, {KAIS: "train"}, ResolvedPriority(7), id="written-before-a-class"),
        pytest.param(
            -7,
            {KAIS: "none"},
            ResolvedPriority(-7),
            id="written-before-an-unknown-class",
        ),
        pytest.param(0, {KAIS: "train"}, ResolvedPriority(50), id="kais"),
        pytest.param(0, {KUEUES: "train"}, ResolvedPriority(50), id="kueues-of-kubernetes"),
        pytest.param(0, {KUEUES: "kueues"}, ResolvedPriority(-2), id="kueues"),
        pytest.param(0, {KUEUES: "both"}, ResolvedPriority(1), id="kueues-class-before-kubernetes"),
        pytest.param(0, {KAIS: "both"}, ResolvedPriority(1), id="kueues-class-first-for-any-label"),
        pytest.param(0, {KUEUES: "kueues", KAIS: "train"}, ResolvedPriority(-2), id="kueues-label-first"),
        pytest.param(0, {KUEUES: "", KAIS: "train"}, ResolvedPriority(50), id="empty-is-absent"),
        pytest.param(0, {KAIS: "polite"}, ResolvedPriority(90, never_preempts=True), id="polite-kais"),
        pytest.param(0, {KUEUES: "polite"}, ResolvedPriority(90, never_preempts=True), id="polite-kueues"),
        pytest.param(7, {KAIS: "polite"}, ResolvedPriority(7, never_preempts=True), id="polite-and-written"),
        pytest.param(0, {KAIS: "zero"}, ResolvedPriority(0), id="class-of-zero"),
        pytest.param(0, {KAIS: "none"}, unknown("none", KAIS), id="unknown"),
        pytest.param(0, {KUEUES: "none", KAIS: "train"}, unknown("none", KUEUES), id="unknown-of-the-first"),
    ],
)
def test_priority_is_that_of_the_spec_or_else_of_the_class(
    written: int, labels: dict[str, str], expected: ResolvedPriority
) -> None:
    assert CLASSES.resolve(written, labels) == expected
    assert CLASSES.resolve(written, kept_labels(labels)) == expected


def test_labels_of_a_class_are_kept_among_many() -> None:
    many = {f"label-{number:05}": "x" for number in range(1000)}
    kept = kept_labels({**many, KAIS: "train"})
    assert class_name(kept) == "train"
    assert class_name(kept_labels({**many, KUEUES: "kueues", KAIS: "train"})) == "kueues"
    assert class_name(kept_labels(many)) == ""


@pytest.mark.parametrize(
    ("written", "name", "is_unsure"),
    [(0, "none", True), (7, "none", True), (0, "train", False), (0, "kueues", False), (7, "polite", False)],
)
def test_only_a_class_that_is_not_there_may_be_gone_for_a_moment(
    written: int, name: str, is_unsure: bool
) -> None:
    some = replace(CLASSES, are_all=False)
    assert some.resolve(written, {KAIS: name}) == replace(
        CLASSES.resolve(written, {KAIS: name}), is_unsure=is_unsure
    )
    assert not CLASSES.resolve(written, {KAIS: name}).is_unsure
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
