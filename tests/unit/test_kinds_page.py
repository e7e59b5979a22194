"""docs/kinds.md says what is true: its example works as written, and it names every kind and every field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from dispatcher.api.document import Entry
from dispatcher.api.spec_errors import SpecError
from dispatcher.cli.files.documents import read_kinds, refused
from dispatcher.core.kinds import declaration
from dispatcher.core.kinds.built_in import ROWS
from dispatcher.core.kinds.declaration import MOST_KINDS, MOST_POD_SETS, MOST_WORDS, read_declarations
from dispatcher.core.kinds.registry import PODLESS
from tests.commands import Run, runner

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "kinds.md").read_text(encoding="utf-8")
OWN_KIND = CHECKOUT / "examples" / "own-kind"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
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
        manifest = (CHECKOUT / "manifests" / path).read_text()
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
    rows = PAGE.partition("## Built-in kinds\n")[2].partition("\n\n")[0].splitlines()[2:]
    ending, going_on, _, with_end_alone, underivable = (
        set(re.findall(r"\w+", row.split("|")[1])) for row in rows
    )
    with_pods = [row for row in ROWS if row.pods and row.pods.rules]
    assert {row.kind for row in with_pods if row.ends} == ending - {"also", "Volcano", "s"}
    assert {row.kind for row in with_pods if not row.ends} == going_on
    assert {row.kind for row in ROWS if row.pods is None and row.ends} == with_end_alone
    assert {row.kind for row in ROWS if row.pods is None and not row.ends} == underivable


def test_every_kind_without_pods_that_may_be_beside_a_gang_is_named() -> None:
    lines = PAGE.partition("### Beside a gang\n")[2].partition("\n- ")[2].partition("\n\n")[0]
    named = set(re.findall(r"\b[A-Z]\w+[a-z]\b", lines.partition(";\n")[2]))
    assert named - {"Kubernetes", "Volcano", "Kueue"} == {kind for _, kind in PODLESS}


def test_no_kind_beside_a_gang_can_be_wrapped_or_is_known_otherwise() -> None:
    assert PODLESS.isdisjoint((row.group, row.kind) for row in ROWS)


def test_every_field_and_bound_of_a_declaration_is_in_the_page() -> None:
    table = PAGE.partition("## Fields of a declaration\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([\w.\[\]]+)`", "".join(row.split("|")[1] for row in table.splitlines())))
    of_pod_sets = {f"podSets[].{field}" for field in declaration.POD_SET_FIELDS}
    assert named == {*declaration.KIND_FIELDS, *of_pod_sets}
    for sentence in (f"At most {MOST_POD_SETS}", f"at most {MOST_WORDS} each", f"at most {MOST_KINDS} kinds"):
        assert sentence in PAGE


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]+)?\)", PAGE)
    assert [each for each in links if not (CHECKOUT / "docs" / each).exists()] == []
