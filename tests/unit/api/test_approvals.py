"""The annotation that names approvals, and the conditions that grant them."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.conditions import LONGEST_ANNOTATION, MOST_APPROVALS, OUR_TYPES, approvals_in, granted_in
from dispatcher.api.spec_errors import SpecError

PLACE = 'metadata.annotations["dispatcher.codeflare.dev/approvals"]: '


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("", ()),
        ("  ", ()),
        ("budget", ("budget",)),
        (" data-staged ,\tbudget\n", ("data-staged", "budget")),
        ("budget,budget", ("budget",)),
        ("example.com/Budget_2.b", ("example.com/Budget_2.b",)),
        ("running", ("running",)),
        (",".join(["a" * 316] * MOST_APPROVALS), ("a" * 316,)),
        ("a,b,c,d,e,f,g,h", tuple("abcdefgh")),
    ],
)
def test_approvals_of_an_annotation(annotation: str, expected: tuple[str, ...]) -> None:
    assert approvals_in(annotation) == expected


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("budget,", 'names "", which is no type of a condition'),
        (",", 'names "", which is no type of a condition'),
        ("data staged", 'names "data staged", which is no type of a condition'),
        ("a/b/c", 'names "a/b/c", which is no type of a condition'),
        ("Example.com/a", 'names "Example.com/a", which is no type of a condition'),
        ("-a", 'names "-a", which is no type of a condition'),
        ("ä", 'names "\\u00e4", which is no type of a condition'),
        ("a\nb", 'names "a\\nb", which is no type of a condition'),
        ("['budget']", "names \"['budget']\", which is no type of a condition"),
        ("a" * 317, "names an approval of 317 characters; at most 316 are allowed"),
        ("a,b,c,d,e,f,g,h,i", "names 9 approvals"),
        ("x" * (LONGEST_ANNOTATION + 1), f"has more than {LONGEST_ANNOTATION} characters"),
        *(
            (each, f"names {each}, a condition that the dispatcher writes itself")
            for each in sorted(OUR_TYPES)
        ),
    ],
)
def test_annotation_that_names_no_approvals_is_refused_with_the_reason(annotation: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        approvals_in(annotation)
    assert str(refused.value).startswith(PLACE + problem)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, ()),
        ("no list", ()),
        ([None, 3, {}, {"type": 3, "status": "True"}, {"type": ["a"], "status": "True"}], ()),
        ([{"type": "a", "status": "True"}, {"type": "b", "status": "False"}, {"type": "c"}], ("a",)),
        (
            [
                {"type": "a", "status": True},
                {"type": "b", "status": "true"},
                {"type": "c", "status": "Unknown"},
            ],
            (),
        ),
        ([{"type": "a", "status": "True"}, {"type": "a", "status": "False"}], ()),
        ([{"type": "a", "status": "False"}, {"type": "a", "status": "True"}], ("a",)),
    ],
)
def test_approval_is_granted_by_the_last_condition_of_its_type_if_that_is_true(
    conditions: Any,  # noqa: ANN401  # whatever somebody wrote
    expected: tuple[str, ...],
) -> None:
    assert granted_in({"conditions": conditions}) == set(expected)
