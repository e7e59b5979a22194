"""Specs and terms, read once and kept: from memory, else from the database, many at a time where many are due."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.annotations import FaultTolerance
from dispatcher.controller.intake import specs
from dispatcher.controller.intake.specs import Specs
from dispatcher.core.model.record import Phase, Record
from dispatcher.kube.objects.appwrappers import NO_ANNOTATIONS, decode
from tests.builders import make_appwrapper, make_record, make_template
from tests.unit.controller.store import FakeStore


class AskedStore(FakeStore):
    """Remembers which specs were asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[int] = []

    async def load_specs(self, hashes: Collection[str]) -> dict[str, bytes]:
        self.questions.append(len(hashes))
        return {each: self.specs[each] for each in hashes if each in self.specs}


@pytest.fixture
def store() -> AskedStore:
    """A database with specs."""
    return AskedStore()


def stored(store: AskedStore, name: str, spec: dict[str, Any] | None = None) -> Record:
    """A gang that runs, whose spec only the database has."""
    view = decode(make_appwrapper(name, make_template(name=name), spec=spec))
    store.specs[view.spec_hash] = view.spec
    return replace(make_record(Phase.RUNNING, name), spec_hash=view.spec_hash)


async def test_lifecycle_policy_is_built_once_for_each_spec_and_its_annotations(store: AskedStore) -> None:
    record, kept = stored(store, "aw"), Specs(store, timedelta(hours=1))
    terms = await kept.policy_of(record, NO_ANNOTATIONS)
    assert (terms.kept_completed, terms.kept_failed) == (timedelta(hours=1), timedelta(hours=1))
    assert await kept.policy_of(record, NO_ANNOTATIONS) is terms
    bent = await kept.policy_of(record, FaultTolerance(success_ttl=timedelta(seconds=5)))
    assert bent == replace(terms, kept_completed=timedelta(seconds=5))
    assert store.questions == [1]


async def test_terms_that_were_prepared_cost_one_question(store: AskedStore) -> None:
    records, kept = [stored(store, f"aw-{number}") for number in range(3)], Specs(store)
    unseen = stored(store, "unseen")
    await kept.prepare({record.uid: NO_ANNOTATIONS for record in records}, [*records, unseen])
    for record in records:
        await kept.policy_of(record, NO_ANNOTATIONS)
    assert store.questions == [3]


async def test_terms_outlive_the_specs_they_were_made_of(
    store: AskedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specs, "MOST_PARSED", 1)
    monkeypatch.setattr(specs, "MOST_KEPT", 1)
    records, kept = [stored(store, f"aw-{number}") for number in range(2)], Specs(store)
    for record in (*records, *records):
        await kept.policy_of(record, NO_ANNOTATIONS)
    assert store.questions == [1, 1]


async def test_terms_that_are_too_many_are_made_again(
    store: AskedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specs, "MOST_TERMS", 1)
    record, kept = stored(store, "aw"), Specs(store)
    bent = FaultTolerance(retry_limit=0)
    first = await kept.policy_of(record, NO_ANNOTATIONS)
    assert (await kept.policy_of(record, bent)).retry_limit == 0
    again = await kept.policy_of(record, NO_ANNOTATIONS)
    assert again == first
    assert again is not first


async def test_specs_are_bounded_in_bytes(store: AskedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [stored(store, f"aw-{number}") for number in range(3)]
    monkeypatch.setattr(specs, "MOST_KEPT", 2 * len(store.specs[records[0].spec_hash]))
    monkeypatch.setattr(specs, "MOST_PARSED", 1)
    kept = Specs(store)
    for record in records:
        await kept.of(record)
    store.questions.clear()
    for record in reversed(records):
        await kept.of(record)
    assert store.questions == [1]  # the oldest had to go


async def test_a_spec_that_is_no_longer_parsed_is_parsed_again_from_memory(
    store: AskedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [stored(store, f"aw-{number}") for number in range(2)]
    monkeypatch.setattr(specs, "MOST_PARSED", len(store.specs[records[0].spec_hash]))
    kept = Specs(store)
    first, second = [await kept.of(record) for record in records]
    assert await kept.of(records[1]) is second
    again = await kept.of(records[0])
    assert (again == first, again is first) == (True, False)
    assert store.questions == [1, 1]
