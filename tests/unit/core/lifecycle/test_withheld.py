"""The pods that the objects of a gang do not ask for any more, and the sentences about them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.kinds.asked import NOT_KNOWN, Asked
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle.withheld import NONE_WITHHELD, Withheld, withheld_by
from dispatcher.core.model.record import ObjectRef


def ref(item: int = 0) -> ObjectRef:
    return ObjectRef(item, "batch/v1", "Job", "default", f"j{item}", f"uid-{item}")


@pytest.mark.parametrize(
    ("asks", "now", "expected"),
    [
        pytest.param(3, Asked(3), NONE_WITHHELD, id="as-many"),
        pytest.param(3, Asked(5), NONE_WITHHELD, id="more"),
        pytest.param(3, NOT_KNOWN, NONE_WITHHELD, id="not-known"),
        pytest.param(
            3,
            Asked(2),
            Withheld(
                1,
                "Job default/j0 asks for fewer than its 3 pods",
                "",
                "Job default/j0 asks for fewer than its 3 pods",
            ),
            id="fewer",
        ),
        pytest.param(3, Asked(2, is_autoscaled=True), Withheld(1), id="fewer-by-its-autoscaler"),
        pytest.param(
            3,
            Asked(0),
            Withheld(
                3,
                "Job default/j0 asks for none of its 3 pods",
                "",
                "Job default/j0 asks for none of its 3 pods",
            ),
            id="none",
        ),
        pytest.param(
            3,
            Asked(0, is_suspended=True),
            Withheld(3, "Job default/j0 is suspended", "", "Job default/j0 is suspended"),
            id="suspended",
        ),
        pytest.param(
            0,
            Asked(0, is_suspended=True),
            Withheld(0, "", "Job default/j0 is suspended", "Job default/j0 is suspended"),
            id="suspended-as-the-appwrapper-says",
        ),
        pytest.param(
            3,
            Asked(3, manager="example.com/other"),
            Withheld(0, "", "", "Job default/j0 is managed by example.com/other"),
            id="another-manager",
        ),
    ],
)
def test_object_withholds_the_pods_that_it_does_not_ask_for(
    asks: int, now: Asked, expected: Withheld
) -> None:
    assert withheld_by([ref()], [CompletionRule(asks=asks)], [now]) == expected


def test_done_objects_and_objects_of_no_item_withhold_nothing() -> None:
    refs = [replace(ref(), done=True), ref(7)]
    assert (
        withheld_by(refs, [CompletionRule(asks=3)], [Asked(0), Asked(0, is_suspended=True)]) == NONE_WITHHELD
    )


def test_sentences_name_three_objects_and_count_the_others() -> None:
    refs = [ref(item) for item in range(5)]
    found = withheld_by(refs, [CompletionRule(asks=1)] * 5, [Asked(0)] * 5)
    assert (found.pods, found.lowered.count("asks for none"), found.lowered[-10:]) == (5, 3, "and 2 more")
