"""What the objects of a gang do not ask for, and of which objects that is not known."""

from __future__ import annotations

import pytest

from dispatcher.core.kinds.asked import NOT_KNOWN, Asked
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle.missing_pods import NONE_WITHHELD, Withheld, withheld_by
from tests.builders import make_ref

SERVER = CompletionRule(holds=True, pods=3, asks=3)
WITHOUT_PODS = CompletionRule()
OF_UNKNOWN_KIND = CompletionRule(holds=True, pods=3)
NONE_OF_THREE = "Deployment default/deployment-0 asks for none of its 3 pods"
IS_SUSPENDED = "Deployment default/deployment-0 is suspended"
IS_MANAGED = "Deployment default/deployment-0 is managed by example.com/x"


@pytest.mark.parametrize(
    ("rule", "asked", "is_done", "expected"),
    [
        pytest.param(SERVER, Asked(3), False, NONE_WITHHELD, id="all-of-its-template"),
        pytest.param(SERVER, Asked(5), False, NONE_WITHHELD, id="more-than-its-template"),
        pytest.param(SERVER, NOT_KNOWN, False, NONE_WITHHELD, id="read-but-malformed"),
        pytest.param(
            SERVER, Asked(0), False, Withheld(3, NONE_OF_THREE, why=NONE_OF_THREE), id="scaled-to-zero"
        ),
        pytest.param(
            SERVER,
            Asked(0, is_suspended=True),
            False,
            Withheld(3, IS_SUSPENDED, why=IS_SUSPENDED),
            id="suspended",
        ),
        pytest.param(
            WITHOUT_PODS,
            Asked(0, is_suspended=True),
            False,
            Withheld(suspended=IS_SUSPENDED, why=IS_SUSPENDED),
            id="suspended-by-its-template",
        ),
        pytest.param(
            SERVER,
            Asked(3, manager="example.com/x"),
            False,
            Withheld(why=IS_MANAGED),
            id="managed-by-another",
        ),
        pytest.param(
            SERVER,
            None,
            False,
            Withheld(unread="Deployment default/deployment-0", unread_pods=3),
            id="not-read",
        ),
        pytest.param(
            OF_UNKNOWN_KIND,
            None,
            False,
            Withheld(unread="Deployment default/deployment-0"),
            id="not-read-and-its-template-tells-no-number",
        ),
        pytest.param(WITHOUT_PODS, None, False, NONE_WITHHELD, id="not-read-and-makes-no-pods"),
        pytest.param(SERVER, None, True, NONE_WITHHELD, id="done-and-not-read"),
        pytest.param(SERVER, Asked(0), True, NONE_WITHHELD, id="done"),
    ],
)
def test_object_withholds_the_pods_of_its_template_that_it_does_not_ask_for(
    rule: CompletionRule, asked: Asked | None, is_done: bool, expected: Withheld
) -> None:
    assert withheld_by((make_ref(0, "Deployment", done=is_done),), (rule,), (asked,)) == expected


def test_object_that_is_not_read_hides_no_other() -> None:
    refs = (make_ref(0, "Deployment"), make_ref(1, "Deployment"))
    withheld = withheld_by(refs, (SERVER, SERVER), (Asked(0), None))
    assert (withheld.pods, withheld.unread_pods) == (3, 3)
