"""A seal proves one attempt of one AppWrapper; without it only what is older than the key is believed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.core.kinds.manifest import anchor_of, build, seal_in
from dispatcher.core.model.seals import CLOCKS_DIFFER, Seals
from tests.builders import at, make_owner, make_wrapped

SEALS, OTHERS = Seals(b"key", at(0)), Seals(b"another", at(0))
LATER = at(0) + CLOCKS_DIFFER + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("seal", "is_proof"),
    [
        pytest.param(SEALS.of("aw", 2), True, id="of-this-attempt"),
        pytest.param(SEALS.of("aw", 1), False, id="of-an-earlier-attempt"),
        pytest.param(SEALS.of("other", 2), False, id="of-another-appwrapper"),
        pytest.param(OTHERS.of("aw", 2), False, id="by-another-key"),
        pytest.param("", False, id="none"),
        pytest.param("ä", False, id="not-of-digits"),
    ],
)
def test_only_the_seal_of_an_attempt_proves_it(seal: str, is_proof: bool) -> None:
    assert SEALS.vouch_for("aw", 2, seal, LATER) is is_proof


@pytest.mark.parametrize(
    ("seconds", "is_believed"),
    [
        pytest.param(-3600, True, id="older-than-the-key"),
        pytest.param(59, True, id="within-the-margin-of-the-clocks"),
        pytest.param(61, False, id="younger"),
    ],
)
def test_objects_without_a_seal_are_believed_for_appwrappers_older_than_the_key(
    seconds: float, is_believed: bool
) -> None:
    assert SEALS.vouch_for("aw", 2, "", at(seconds)) is is_believed


def test_age_proves_nothing_where_the_database_had_a_past_when_its_key_was_made() -> None:
    seals = Seals(SEALS.key, None)
    assert [seals.vouch_for("aw", 2, seal, at(-3600)) for seal in ("", seals.of("aw", 2))] == [False, True]


def test_uid_and_attempt_cannot_be_shifted_into_each_other() -> None:
    assert SEALS.of("aw-1", 1) != SEALS.of("aw-", 11)


def test_key_is_never_shown() -> None:
    assert "key" not in repr(SEALS)


def test_every_object_and_anchor_is_sealed_for_its_attempt() -> None:
    owner = make_owner(attempt=2, seals=SEALS)
    sealed = [seal_in(made["metadata"]) for made in (build(make_wrapped(), owner), anchor_of(owner))]
    assert sealed == [SEALS.of(owner.uid, 2)] * 2
    assert seal_in(build(make_wrapped(), make_owner())["metadata"]) == ""


@pytest.mark.parametrize("annotations", [None, [], "seal", {"dispatcher.codeflare.dev/seal": 7}])
def test_metadata_of_any_shape_has_no_seal(annotations: object) -> None:
    assert seal_in({"annotations": annotations}) == ""
