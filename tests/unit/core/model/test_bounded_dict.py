"""A bounded dict keeps the entries that were written last."""

from __future__ import annotations

import pytest

from dispatcher.core.model.bounded_dict import BoundedDict, remember


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        pytest.param("ab", "ab", id="within-its-bound"),
        pytest.param("abcd", "bcd", id="oldest-is-dropped"),
        pytest.param("abcad", "cad", id="written-again-is-new"),
        pytest.param("aaaa", "a", id="one-entry"),
    ],
)
def test_entries_that_were_written_last_are_kept(written: str, kept: str) -> None:
    entries: BoundedDict[str, int] = BoundedDict(3)
    for number, key in enumerate(written):
        entries[key] = number
    assert list(entries) == list(kept)
    assert entries[written[-1]] == len(written) - 1


def test_remembered_entries_never_exceed_the_bound() -> None:
    known: dict[str, int] = {}
    for at, key in enumerate("abcde"):
        remember(known, 3, key, at)
        assert known[key] == at
        assert len(known) <= 3
