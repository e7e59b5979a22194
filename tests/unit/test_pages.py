"""Pages of docs/ say what the product says: what was tested, the kinds, the metrics, the afternoons by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dispatcher import errors
from dispatcher.api.document import Entry
from dispatcher.api.spec_errors import SpecError
from dispatcher.cli.files.documents import read_kinds, refused
from dispatcher.controller.upkeep.metrics import MOST_AMOUNTS, MOST_QUEUES
from dispatcher.core.kinds import declaration
from dispatcher.core.kinds.built_in import ROWS
from dispatcher.core.kinds.declaration import MOST_KINDS, MOST_POD_SETS, MOST_WORDS, read_declarations
from dispatcher.core.kinds.registry import PODLESS
from dispatcher.core.model.records.record import Phase
from dispatcher.settings import Settings
from testbed.dev import NODE, USERS
from testbed.stack import NODES
from tests.afternoon import CHECKOUT, STATE, Step, comparable, first_steps, steps
from tests.commands import Run, runner
from tests.metrics import Described, described, names_of_notifier

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
MCAD = ROOT / "tests" / "cluster" / "mcad"
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in MCAD.glob("test_*.py"))
CLUSTER_TESTS = "\n".join(path.read_text(encoding="utf-8") for path in MCAD.parent.rglob("test_*.py"))
FILES = {path.stem for path in (MCAD / "yaml").glob("*.yaml")}
ROW = re.compile(
    r"^\| ((?:MCAD|Create AppWrapper|kuttl|test/yaml|doc/usage)[^|]*?) \| (?:same|stronger)", re.MULTILINE
)
"""What MCAD called a test that holds here; a case of kuttl's, or some; one file, or some."""
MOST_WORDS_OF_README: Final = 900
FOLDER = re.compile(r"kuttl |(?:test/yaml|doc/usage)[a-z/]*: ")
"""What stands before the names of cases and of files."""
MCADS_TESTS = 30
MCADS_CASES = {"deployment-01", "deployment-02", "quota-forest", "quota-errors", "extended-resources"}
OF_OLD = {"DISPATCHER_MODE", "DISPATCHER_AGENT_CONFIGS"}
"""Variables of MCAD that begin like ours."""


def names_in(row: str) -> list[str]:
    """The names in a row, which for one of the Go suite's is one, colons, commas and all."""
    folder = FOLDER.match(row)
    return re.split(r"[:,] ", row[folder.end() :]) if folder else [row]


def rows_of_table(*begin: str) -> list[str]:
    """The names in every row that begins like this, of what is said to hold."""
    return [name for row in ROW.findall(PAGE) if row.startswith(begin) for name in names_in(row)]


def test_every_variable_named_is_a_setting() -> None:
    named = set(re.findall(r"DISPATCHER_[A-Z_]+", PAGE)) - OF_OLD

    assert {name.removeprefix("DISPATCHER_").lower() for name in named} <= Settings.model_fields.keys()


def test_every_test_of_mcads_that_is_said_to_hold_is_in_the_suite() -> None:
    assert len(rows_of_table("MCAD", "Create AppWrapper")) == MCADS_TESTS
    assert set(rows_of_table("kuttl")) >= MCADS_CASES
    assert [name for name in rows_of_table("") if name not in TESTS] == []


def test_every_file_of_mcads_is_applied_and_has_its_row() -> None:
    told = rows_of_table("test/yaml", "doc/usage")

    assert sorted(told) == sorted(FILES)
    assert [name for name in told if f'"{name}"' not in TESTS] == []


def test_every_test_of_ours_that_is_named_is_there() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE)

    assert [name for name in named if f"def {name}(" not in CLUSTER_TESTS] == []


def test_every_link_leads_to_a_heading() -> None:
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in PAGE.splitlines() if line[:1] == "#"}

    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings


def test_page_can_be_read_in_one_sitting() -> None:
    assert len(PAGE.splitlines()) <= 180


# --- docs/kinds.md -----------------------------------------------------------------------------------------


KINDS = (ROOT / "docs" / "kinds.md").read_text(encoding="utf-8")
OWN_KIND = ROOT / "examples" / "own-kind"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", KINDS, re.MULTILINE | re.DOTALL)
WRAPPED, DECLARED, RIGHTS = (text for language, text in BLOCKS if language == "yaml")
COMMANDS = [text for language, text in BLOCKS if not language]


@pytest.fixture
def demand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher demand …`."""
    return runner(monkeypatch, capsys, "demand")


def test_declaration_is_the_file_of_the_example() -> None:
    written = yaml.safe_load((OWN_KIND / "kinds.yaml").read_text())
    assert yaml.safe_load(DECLARED) == written
    (kind,) = read_declarations(Entry(written, ""))
    assert (kind.group, kind.kind) == ("platform.example.com", "Training")


async def test_wrapped_object_of_the_page_is_counted(demand: Run) -> None:
    ran = await demand("-f", "-", "-o", "json", stdin=WRAPPED)
    assert (ran.code, ran.err) == (0, "")
    (counted,) = json.loads(ran.out)
    assert (counted["kind"], counted["total"]["pods"]) == ("AppWrapper", 2)


async def test_demand_of_the_example_is_as_shown(demand: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _, shown = next(each for each in COMMANDS if each.startswith("$ ")).partition("\n")
    program, _, arguments = command.removeprefix("$ ").partition(" demand ")
    assert program == "kubectl aw"
    monkeypatch.chdir(OWN_KIND)
    ran = await demand(*arguments.split())
    assert (ran.code, ran.out, ran.err) == (0, shown, "")


def test_rule_of_rights_is_in_both_manifests() -> None:
    for path in ("base/hub.yaml", "overlays/member/member.yaml"):
        manifest = (ROOT / "manifests" / path).read_text()
        assert f"# {RIGHTS}" in manifest


def test_kind_of_the_example_is_the_one_that_authors_are_allowed() -> None:
    (kind,) = read_kinds(str(OWN_KIND / "kinds.yaml")).declared
    (rule,) = yaml.safe_load(RIGHTS)
    (plural,) = rule["resources"]
    patch = next(each for each in COMMANDS if "appwrapper-kinds" in each)
    assert rule["apiGroups"] == [kind.group]
    assert f'{{"data":{{"{kind.kind}.{kind.group}":"{plural}"}}}}' in patch


def test_refusal_of_a_wrong_file_is_as_shown() -> None:
    wrong = yaml.safe_load(DECLARED.replace("count:", "replicas:"))
    with pytest.raises(SpecError) as raised:
        read_declarations(Entry(wrong, ""))
    shown = next(each for each in COMMANDS if each.startswith("dispatcher: "))
    assert shown == f"dispatcher: {refused('kinds.yaml', str(raised.value))}\n"


def test_every_built_in_kind_with_pods_is_named() -> None:
    rows = KINDS.partition("## Built-in kinds\n")[2].partition("\n\n")[0].splitlines()[2:]
    ending, going_on, _, with_end_alone, underivable = (
        set(re.findall(r"\w+", row.split("|")[1])) for row in rows
    )
    with_pods = [row for row in ROWS if row.pods and row.pods.rules]
    assert {row.kind for row in with_pods if row.ends} == ending - {"also", "Volcano", "s"}
    assert {row.kind for row in with_pods if not row.ends} == going_on
    assert {row.kind for row in ROWS if row.pods is None and row.ends} == with_end_alone
    assert {row.kind for row in ROWS if row.pods is None and not row.ends} == underivable


def test_every_kind_without_pods_that_may_be_beside_a_gang_is_named() -> None:
    lines = KINDS.partition("### Beside a gang\n")[2].partition("\n- ")[2].partition("\n\n")[0]
    named = set(re.findall(r"\b[A-Z]\w+[a-z]\b", lines.partition(";\n")[2]))
    assert named - {"Kubernetes", "Volcano", "Kueue"} == {kind for _, kind in PODLESS}


def test_no_kind_beside_a_gang_can_be_wrapped_or_is_known_otherwise() -> None:
    assert PODLESS.isdisjoint((row.group, row.kind) for row in ROWS)


def test_every_field_and_bound_of_a_declaration_is_in_the_page() -> None:
    table = KINDS.partition("## Fields of a declaration\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([\w.\[\]]+)`", "".join(row.split("|")[1] for row in table.splitlines())))
    of_pod_sets = {f"podSets[].{field}" for field in declaration.POD_SET_FIELDS}
    assert named == {*declaration.KIND_FIELDS, *of_pod_sets}
    for sentence in (f"At most {MOST_POD_SETS}", f"at most {MOST_WORDS} each", f"at most {MOST_KINDS} kinds"):
        assert sentence in KINDS


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]+)?\)", KINDS)
    assert [each for each in links if not (ROOT / "docs" / each).exists()] == []


# --- docs/metrics.md ---------------------------------------------------------------------------------------


DOCS: Final = Path(__file__).parents[2] / "docs"
METRICS: Final = (DOCS / "metrics.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """The cells of each row by the metric's name: type, labels, series, meaning, advice."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in METRICS.splitlines()
        if line.startswith("| `dispatcher_")
    ]
    names = [each[0].strip("`") for each in cells]
    assert len(names) == len(set(names))
    return dict(zip(names, (each[1:] for each in cells), strict=True))


def test_page_and_registry_have_the_same_metrics_with_the_same_types_and_labels() -> None:
    page = {
        name: Described(kind, tuple(sorted(re.findall(r"`(\w+)`", labels))))
        for name, (kind, labels, *_) in rows().items()
    }
    assert page == described()


def test_every_metric_has_a_meaning_and_a_bound_of_its_series() -> None:
    assert [name for name, (_, _, series, meaning, _) in rows().items() if not (series and meaning)] == []


def test_bounds_are_those_of_the_code() -> None:
    series = {name: cells[2] for name, cells in rows().items()}
    assert series["dispatcher_appwrappers"] == str(len(Phase))
    assert series["dispatcher_queue_pending"] == f"{MOST_QUEUES:,}"
    assert series["dispatcher_queue_used"] == f"{MOST_AMOUNTS:,}"


def test_every_error_of_a_write_is_a_word_of_the_page() -> None:
    row = rows()["dispatcher_api_write_errors_total"]
    uncounted = {errors.WriteForbiddenByFence, errors.Refused}
    words = {
        each.__name__
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.ClusterError) and each not in uncounted
    } - {errors.ClusterError.__name__}
    assert set(re.findall(r"`([A-Z]\w+)`", row[3])) == words
    assert row[2] == f"{4 * len(words)} \N{MULTIPLICATION SIGN} (K + 10)"


def test_metrics_that_other_pages_name_exist() -> None:
    roles = {"dispatcher_reader", "dispatcher_tenant", "dispatcher_notifier"}
    named = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"`(dispatcher_[a-z_]+)", page.read_text(encoding="utf-8"))
    }
    assert named - roles <= described().keys() | names_of_notifier()


# --- docs/try-it.md ----------------------------------------------------------------------------------------


Json = dict[str, Any]

AFTERNOON = CHECKOUT / "examples" / "afternoon"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …`."""
    return runner(monkeypatch, capsys)


async def gang(run: Run, name: str) -> Json:
    """The gang of a file of the afternoon, for a scenario."""
    asked = await run("demand", "-f", str(AFTERNOON / f"{name}.yaml"), "-o", "json")
    (found,) = json.loads(asked.out)
    pods = [{"count": each["count"], "requests": quantities(each["requests"])} for each in found["podSets"]]
    return {"name": name, "pods": pods}


def quantities(requests: dict[str, int]) -> dict[str, str]:
    """Amounts in base units as quantities."""
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in requests.items()}


def test_commands_name_files_and_users_that_exist() -> None:
    lines = "\n".join(step.command for step in steps())
    files = re.findall(r"\bexamples/\S+", lines)
    assert {Path(each).name for each in files} == {each.name for each in AFTERNOON.iterdir()}
    assert set(re.findall(rf"{STATE}/(\w+)\.kubeconfig", lines)) == {*USERS, "admin"}


async def test_explanation_is_that_of_a_plan(run: Run) -> None:
    running = [{**await gang(run, name), "cluster": "hub", "ran": 60} for name in ("sweep", "tune")]
    hub = {"name": "hub", "nodes": [{"name": "node", "count": NODES, "allocatable": NODE.capacity}]}
    scenario = {"clusters": [hub], "running": running, "pending": [await gang(run, "pretrain")]}
    planned = await run("plan", "-f", "-", "-o", "json", stdin=json.dumps(scenario))

    (decision,) = json.loads(planned.out)["decisions"]
    (shown,) = (step.output for step in steps() if "explain" in step.words)
    assert f"team-b/pretrain waits: {decision['reason']}\n" in shown
    assert f"  {decision['message']}\n" in shown
    assert [f"team-a/{each}" for each in decision["holders"]] == re.findall(
        r"^(team-\S+)  ", shown, re.MULTILINE
    )
    add, remove = decision["repair"]
    assert f"with {add['add_nodes']['count']} more node like node-0" in shown
    assert f"without team-a/{remove['remove'][0]}\n\nAs of " in shown


@pytest.mark.parametrize(
    ("command", "shown", "found", "agree"),
    [
        ("queue", "a   3s  8", "a  12m  8", True),
        ("queue", "a   3s  8", "a  12m  9", False),
        ("queue", "a\nb", "b\na", False),
        ("history", "a 2026-01-01T00:00:00Z 0.01\nb 1s", "b 2h\na 2026-02-02T01:01:01Z 0.15", True),
        ("history", "a completed", "a failed", False),
        ("usage", "ada 0.01  42.41", "ada 0.02  50.5", True),
        ("usage", "ada 0.01  42.41", "ben 0.01  42.41", False),
        ("wait a", "a Backoff\na Running on hub", "a Running on hub", True),
        ("wait a", "a Running on hub", "a Failed on hub", False),
    ],
)
def test_output_agrees_with_the_page_up_to_times(command: str, shown: str, found: str, agree: bool) -> None:
    assert Step(f"kubectl aw {command}", shown).is_shown_by(found) is agree


# --- docs/first-appwrapper.md ------------------------------------------------------------------------------


OF_FILES = [each for each in first_steps() if each.words & {"demand", "wrap"}]


@pytest.mark.parametrize("step", OF_FILES, ids=lambda step: str(step.command))
async def test_commands_over_the_file_of_the_first_appwrapper_are_as_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.delenv("DISPATCHER_KINDS_FILE", raising=False)
    program, _, arguments = step.command.partition(" aw ")
    ran = await run(*arguments.partition(" | ")[0].split())
    shown = comparable(step.output)
    assert (program, ran.code, comparable(ran.out)[: len(shown)]) == ("kubectl", 0, shown)


def test_there_are_commands_over_the_file_of_the_first_appwrapper() -> None:
    assert len(OF_FILES) == 2


def test_readme_is_read_in_some_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS_OF_README
