"""Fields that do not count for equality, and fields that are never shown."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from dispatcher.cli.operators.members import Wanted
from dispatcher.core.kinds.demand import Charge
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.fit.fit import Shortfall
from dispatcher.kube.kubeconfig import Connection
from dispatcher.kube.user_kubeconfig import Access, UserKubeconfig
from dispatcher.values import equal_without, shown_without

SECRET = "hunter2"
HOLDERS = {
    "a connection": Connection(
        "https://east.example",
        authorities=SECRET.encode(),
        token=SECRET,
        certificate=SECRET.encode(),
        key=SECRET.encode(),
    ),
    "an access": Access("https://east.example", "", None, headers={"Authorization": SECRET}),
    "a user's kubeconfig": UserKubeconfig("~/.kube/config", "me", {}, {}, {"me": {"token": SECRET}}),
    "a member to add": Wanted("east", kubeconfig=SECRET.encode()),
}


@equal_without("note")
@shown_without("key")
class Door(Struct, frozen=True):
    name: str
    note: str = ""
    key: str = ""


class Gate(Door, frozen=True):
    pass


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("shown", [repr, str, "{}".format, lambda value: in_rich(value)])
def test_secret_is_never_shown(holder: object, shown: Callable[[object], str]) -> None:
    assert type(holder).__name__ in shown(holder)
    assert SECRET not in shown(holder)


def in_rich(value: object) -> str:
    """The value as rich shows it, also among the locals of a traceback."""
    console = Console(file=StringIO(), width=200)
    console.print([value])
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_fields_that_do_not_count() -> None:
    door, noted = Door("a"), Door("a", "green")
    assert (door == noted, door != noted, hash(door) == hash(noted), {door, noted}) == (
        True,
        False,
        True,
        {door},
    )


@pytest.mark.parametrize("other", [Door("b"), Door("a", key="k"), Gate("a"), "a", None])
def test_all_else_counts(other: object) -> None:
    door = Door("a")
    assert (door == other, door != other) == (False, True)


@pytest.mark.parametrize("decorated", [equal_without("nmae"), shown_without("nmae")])
def test_misspelt_field_is_an_error_at_once(decorated: Callable[[type[Door]], type[Door]]) -> None:
    with pytest.raises(TypeError, match="Door has no field nmae"):
        decorated(Door)


def test_class_with_fields_that_would_not_be_compared_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match="Wide adds fields"):

        class Wide(Door, frozen=True):
            width: int = 0


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Door("a").name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "equal", "other"),
    [
        (PodSet(1, NOTHING), PodSet(1, NOTHING, path="spec", item=2), PodSet(2, NOTHING)),
        (Charge(Gang()), Charge(Gang()), Charge(Gang(pods=1))),
        (Shortfall(), Shortfall(available=Resources({"cpu": 1})), Shortfall(fitting=1)),
        (Gang(pods=1), replace(Gang(), pods=1), Gang(pods=2)),
        (ClusterRequirements(namespace="a"), ClusterRequirements(namespace="a"), ClusterRequirements()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_equal_values_of_the_core_have_one_hash(value: object, equal: object, other: object) -> None:
    assert (value == equal, value != equal, hash(value) == hash(equal)) == (True, False, True)
    assert (value == other, value != other) == (False, True)


def test_labels_of_a_node_count_for_equality_and_not_for_its_hash() -> None:
    node, labelled = Node("n", NOTHING), Node("n", NOTHING, labels={"zone": "a"})
    assert node != labelled
    assert hash(node) == hash(labelled)


def test_constraints_of_a_gang_are_always_those_of_its_pod_sets() -> None:
    gang = Gang(pods=1, pod_sets=(PodSet(1, NOTHING),))
    assert gang.constraints == {PodSet(1, NOTHING).constraint}
    assert replace(gang, pod_sets=()).constraints == frozenset()
    for copied in (copy.copy(gang), pickle.loads(pickle.dumps(gang))):  # noqa: S301  # our own
        assert (copied, copied.constraints) == (gang, gang.constraints)
    assert "constraints" not in repr(gang)


# --- Mypy checks the changes of a struct, as it checks those of a dataclass --------------------------------


PLUGIN = Path(__file__).parents[2] / "tools" / "mypy_structs.py"
CONFIG = f"""
[mypy]
strict = true
plugins = {PLUGIN}
"""
SOURCE = """
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace


class Place(Struct, frozen=True):
    name: str
    pods: int = 0


@dataclass
class Other:
    name: str


replace(Place("a"), pods=1).name
replace(Place("a"), pod=1)
replace(Place("a"), pods="1")
replace(Other("a"), name="b")
replace(Place("a"), pods=1).nothing
"""
REFUSED = [("19", "[call-arg]"), ("20", "[arg-type]"), ("21", "[type-var]"), ("22", "[attr-defined]")]


@pytest.mark.timeout(60)
def test_changes_of_a_struct_are_checked(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SOURCE)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "main.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)  # noqa: S603  # our own
    found = [(line.split(":")[1], line.rpartition("  ")[2]) for line in done.stdout.splitlines()]
    assert (found, done.stderr) == (REFUSED, "")
