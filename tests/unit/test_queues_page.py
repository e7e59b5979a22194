"""docs/queues.md says what is true: each example has the answer that the page shows, and each field is explained."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.names import KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, QUEUE_LABEL
from dispatcher.core.queues import declaration
from dispatcher.core.queues.declaration import parse_dispatch_queue
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Reclaim, Sharing, StopPolicy, WithinQueue
from tests.commands import Run, runner

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "queues.md").read_text(encoding="utf-8")
EXAMPLES = sorted((CHECKOUT / "examples" / "queues").glob("*/queues.yaml"))
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ANSWERED = [
    (text, answer)
    for (language, text), (next_language, answer) in pairwise(BLOCKS)
    if (language, next_language) == ("yaml", "text")
]
MANIFESTS = [text for language, text in BLOCKS if language == "yaml" and "kind: DispatchQueue" in text]
(SHARED,) = (
    text
    for language, text in BLOCKS
    if language == "yaml" and text not in MANIFESTS and text not in dict(ANSWERED)
)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher plan …`."""
    return runner(monkeypatch, capsys, "plan")


def section(heading: str) -> str:
    """The text of a section."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_has_its_examples() -> None:
    assert (len(ANSWERED), len(MANIFESTS)) == (5, 2)


@pytest.mark.parametrize(
    ("scenario", "answer"),
    [pytest.param(*each, id=f"example-{number}") for number, each in enumerate(ANSWERED)],
)
async def test_an_example_has_the_answer_of_the_page(plan: Run, scenario: str, answer: str) -> None:
    ran = await plan("--no-repairs", "-f", "-", stdin=scenario)
    assert (ran.code, ran.out, ran.err) == (0, answer, "")


@pytest.mark.parametrize("gpus", ["2", "3"])
async def test_the_sharings_differ_as_the_page_says(plan: Run, gpus: str) -> None:
    table = section("Which sharing").partition("| `more` asks |")[2]
    (shown,) = (cells[1:] for cells in rows(f"|{table}") if cells[0] == gpus)
    found = [await told(plan, sharing, int(gpus)) for sharing in Sharing]
    assert found == shown


async def told(plan: Run, sharing: Sharing, gpus: int) -> str:
    """The decision about the gang `more`, in the words of the page; that about `own` is the same under any sharing."""
    scenario = yaml.safe_load(SHARED)
    scenario["queues"][0]["sharing"] = sharing.value
    scenario["pending"][1]["pods"][0]["count"] = gpus
    ran = await plan("--no-repairs", "-o", "json", "-f", "-", stdin=json.dumps(scenario))
    own, more = json.loads(ran.out)["decisions"]
    assert (own["for"], own["reasons"]) == ("own", {"b3": "QuotaReclaimed"})
    if "waiting" in more:
        return "waits"
    ((victim, reason),) = more["reasons"].items()
    return f"preempts {victim}: {reason}"


def test_the_queue_of_one_team_is_that_of_its_example() -> None:
    manifest = yaml.safe_load(MANIFESTS[0])
    (queue,) = yaml.safe_load(ANSWERED[0][0])["queues"]
    assert {"name": manifest["metadata"]["name"], **manifest["spec"]} == queue


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.parent.name)
def test_queues_of_an_example_are_valid_and_have_effect(file: Path) -> None:
    queues = [parse_dispatch_queue(each) for each in yaml.safe_load_all(file.read_text())]
    forest = Forest.of(queues)
    assert forest.problems == {}
    assert [forest.ignored(each.name) for each in queues] == [[]] * len(queues)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.parent.name)
def test_appwrappers_of_an_example_name_leaves_and_classes_of_it(file: Path) -> None:
    queues = [parse_dispatch_queue(each) for each in yaml.safe_load_all(file.read_text())]
    leaves = {place.name for place in Forest.of(queues).leaves}
    classes = {
        each["metadata"]["name"]
        for path in file.parent.glob("priority-classes.yaml")
        for each in yaml.safe_load_all(path.read_text())
    }
    for path in file.parent.glob("aw-*.yaml"):
        labels = yaml.safe_load(path.read_text())["metadata"]["labels"]
        assert labels.get(KUEUE_QUEUE_LABEL, labels.get(KAI_QUEUE_LABEL)) in leaves
        assert labels.get("kueue.x-k8s.io/priority-class", labels.get("priorityClassName")) in classes


def test_every_field_is_explained_with_its_default() -> None:
    named = re.findall(r"`([\w.*]+)`", " ".join(cells[0] for cells in rows(section("Fields"))))
    inner = {"resources": declaration.QUOTA_FIELDS, "preemption": declaration.PREEMPTION_FIELDS}
    expected = {
        *(field for field in declaration.FIELDS if field not in inner),
        *(f"resources.*.{field}" for field in declaration.QUOTA_FIELDS),
        *(f"preemption.{field}" for field in declaration.PREEMPTION_FIELDS if field != "whileBorrowing"),
        *(f"preemption.whileBorrowing.{field}" for field in declaration.WHILE_BORROWING_FIELDS),
    }
    assert set(named) - {"spec"} == expected
    defaults = {cells[0].strip("`"): cells[2] for cells in rows(section("Fields"))}
    assert defaults["maxPreemptions"] == str(Defaults().max_preemptions)
    assert defaults["minRuntimeSeconds"] == str(Defaults().min_runtime.seconds)


@pytest.mark.parametrize(
    "word",
    [*Sharing, *WithinQueue, *Reclaim, *StopPolicy, QUEUE_LABEL, KUEUE_QUEUE_LABEL, KAI_QUEUE_LABEL],
)
def test_every_value_and_label_is_named(word: str) -> None:
    assert f"`{word}`" in PAGE


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]+)?\)", PAGE)
    assert [each for each in links if not (CHECKOUT / "docs" / each).exists()] == []


def test_every_command_names_a_file_of_the_examples() -> None:
    named = re.findall(r"-f (examples/\S+)", PAGE)
    assert named
    assert [each for each in named if not (CHECKOUT / each).exists()] == []
