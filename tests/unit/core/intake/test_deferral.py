"""Who waits outside the queue is let in by age, and forgotten when gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.intake.namespace_bounds import Deferred, deferred_status
from tests.builders import at


def test_oldest_of_a_namespace_comes_first() -> None:
    deferred = Deferred()
    for uid, second, order in [("c", 2, 1), ("b", 1, 10), ("a", 1, 9)]:
        deferred.put("team", (at(second), order), uid)
    deferred.put("other", (at(0), 0), "x")
    assert [deferred.pop("team") for _ in range(4)] == ["a", "b", "c", None]
    assert (list(deferred.namespaces()), "x" in deferred, "a" in deferred) == (["other"], True, False)


def test_status_says_what_to_wait_for_and_never_changes() -> None:
    shown = deferred_status("team", 2)
    assert (shown["state"], shown["queuejobstate"], shown["canrun"]) == ("Pending", "Init", False)
    assert shown["waiting"] == {
        "reason": "NamespaceQueueFull",
        "message": "namespace team has 2 AppWrappers in the queue or suspended, and may have no more; this one is "
        "taken in, by its age, when one of those is dispatched or deleted",
    }
    assert deferred_status("team", 2, has_components=True) == {**shown, "phase": "Suspended"}


_STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "discard", "pop"]), st.sampled_from("ab"), st.integers(0, 30)),
    max_size=300,
)


@given(_STEPS)
def test_it_is_a_sorted_list_for_each_namespace(steps: list[tuple[str, str, int]]) -> None:
    deferred, model = Deferred(), dict[str, tuple[str, int]]()
    for step, namespace, number in steps:
        uid = f"{namespace}-{number}"
        if step == "put":
            deferred.put(namespace, (at(number), 0), uid)
            model.setdefault(uid, (namespace, number))
        elif step == "discard":
            deferred.discard(uid)
            model.pop(uid, None)
        else:
            waiting = [
                (age, each) for each, (requirements, age) in model.items() if requirements == namespace
            ]
            oldest = min(waiting)[1] if waiting else None
            assert deferred.pop(namespace) == oldest
            if oldest:
                del model[oldest]
        assert len(deferred) == len(model)
        assert set(deferred.namespaces()) == {requirements for requirements, _ in model.values()}


def test_appwrappers_that_come_and_go_leave_no_memory() -> None:
    deferred = Deferred()
    deferred.put("team", (at(0), 0), "stays")
    for number in range(10_000):
        deferred.put("team", (at(1), number), f"u-{number}")
        deferred.discard(f"u-{number}")
    assert len(deferred._heaps["team"]) < 200  # noqa: SLF001  # what it costs is what it keeps
    assert deferred.pop("team") == "stays"
