"""Approvals: conditions of an AppWrapper that others set True before it may be dispatched.

An annotation of the AppWrapper names approvals, and so does its queue. Each is the type of a condition in the status of
the AppWrapper, written by somebody who may patch the status. The dispatcher's own types are no approvals, because it
writes them itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dispatcher.api.conditions import OUR_TYPES
from dispatcher.api.names import APPROVALS
from dispatcher.api.spec_errors import SpecError, joined, quoted
from dispatcher.text import mappings_of

MOST_APPROVALS: Final = 8
"""Approvals that an AppWrapper, or a queue, may name."""
LONGEST_APPROVAL: Final = 316
"""Characters of a condition type. Source: k8s.io/apimachinery, metav1.Condition."""
LONGEST_ANNOTATION: Final = MOST_APPROVALS * (LONGEST_APPROVAL + 2)

PATH: Final = joined("metadata.annotations", APPROVALS)
"""The place of the annotation in an AppWrapper."""

CONDITION_TYPE: Final = (
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])"
)
"""The syntax of a condition type. Source: k8s.io/apimachinery, metav1.Condition."""

_CONDITION_TYPE: Final = re.compile(CONDITION_TYPE)


def problem_of(name: str) -> str:
    """Why a text cannot name an approval, as the rest of a sentence about it; empty if it can."""
    if name in OUR_TYPES:
        return f"names {name}, a condition that the dispatcher writes itself"
    if len(name) > LONGEST_APPROVAL:
        return f"names an approval of {len(name)} characters; at most {LONGEST_APPROVAL} are allowed"
    if not _CONDITION_TYPE.fullmatch(name):
        return f"names {quoted(name)}, which is no type of a condition"
    return ""


def approvals_in(annotation: str) -> tuple[str, ...]:
    """The approvals that an annotation names, with commas between, each once. Raises `SpecError`."""
    if not annotation.strip():
        return ()
    if len(annotation) > LONGEST_ANNOTATION:
        raise SpecError(PATH, f"has more than {LONGEST_ANNOTATION} characters", "Name fewer approvals")
    found = tuple(dict.fromkeys(word.strip() for word in annotation.split(",")))
    for problem in filter(None, map(problem_of, found)):
        raise SpecError(
            PATH, problem, 'Write names such as "budget" or "example.com/budget", with commas between'
        )
    if len(found) > MOST_APPROVALS:
        raise SpecError(PATH, f"names {len(found)} approvals", f"Name at most {MOST_APPROVALS}")
    return found


def granted_in(status: Mapping[str, Any]) -> frozenset[str]:
    """The types of the conditions in a status that are True; of several of one type the last counts. Never raises."""
    entries = mappings_of(status.get("conditions"))
    states = {each.get("type"): each.get("status") for each in entries if isinstance(each.get("type"), str)}
    return frozenset(type_ for type_, state in states.items() if type_ is not None and state == "True")
