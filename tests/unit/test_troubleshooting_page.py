"""docs/troubleshooting.md has every word that users and operators meet, and links that lead somewhere."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ComponentsCondition, ConditionType
from dispatcher.api.names import APPROVALS
from dispatcher.core.lifecycle import removal
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.pending_reasons import NO_REASON, REASONS
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Phase
from dispatcher.probes import Role
from tests.builders import NOW, make_evicted, make_record
from tests.yaml_files import load_yaml

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@cache
def first_words_of_calls() -> dict[str, set[str]]:
    """The first argument of every call in the product, where it is written out, by the name of the callee."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((CHECKOUT / "dispatcher").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name, word = getattr(node.func, "attr", getattr(node.func, "id", "")), node.args[0].value
                if isinstance(word, str):
                    found[name].add(word)
    return found


def first_words(*callees: str) -> set[str]:
    """The first argument of the calls of functions and methods with one of these names, where it is written out."""
    return set().union(*(first_words_of_calls()[callee] for callee in callees))


def constants(module: object) -> set[str]:
    """The strings that a module names in capitals, but for its private ones."""
    return {
        value
        for name, value in vars(module).items()
        if name.isupper() and type(value) is str and name[0] != "_"
    }


def missing(wanted: set[str], form: str = "`{}`") -> list[str]:
    return sorted(word for word in wanted if form.format(word) not in PAGE)


WAITS_FOR = REASONS.keys() - {NO_REASON}


def test_every_reason_to_wait_has_its_section() -> None:
    assert missing(set(WAITS_FOR), "\n### {}\n") == []


def test_every_section_on_waiting_is_about_a_reason() -> None:
    assert set(re.findall(r"\n### (\w+)\n", PAGE)) == WAITS_FOR


def test_reasons_of_one_that_went_back_are_those_of_the_code() -> None:
    records = (make_evicted(), make_record(Phase.REQUEUEING))
    waiting = [removal.removed(record, NOW).after.pending for record in records]
    assert {pending.reason for pending in waiting if pending} <= WAITS_FOR
    assert None not in waiting


def test_page_explains_every_condition_and_reason() -> None:
    reasons = {value for value in constants(words) if not value.startswith("before ") and "{" not in value}
    assert words.ITEM_CREATION_FAILURE in reasons
    types = {each.value for each in (*ConditionType, *ComponentsCondition)}
    about_approvals = {APPROVALS, words.APPROVALS_PATH, words.CONDITION_TYPE}
    assert missing((reasons - about_approvals) | types) == []


def test_page_explains_every_reason_of_a_preemption() -> None:
    assert missing({reason.value for reason in Reason}, "\n| `PreemptCandidate` | `{}` |") == []


def test_page_explains_every_message_with_figures_by_an_example() -> None:
    templates = [value for value in constants(words) if "{" in value]
    assert words.DEADLINE_MESSAGE in templates
    examples = [re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(template)) for template in templates]
    assert [example for example in examples if not re.search(f"`{example}`", PAGE)] == []


def test_page_explains_every_event_for_users() -> None:
    told = first_words("UserEvent")
    assert {"Preempted", "Backoff", "SpecAdjusted"} <= told
    assert missing(told, "\n| `{}` |") == []


def test_page_explains_every_column() -> None:
    crd = load_yaml(CHECKOUT / "crds" / "workload.codeflare.dev_appwrappers.yaml")
    columns = {
        column["name"]
        for version in crd["spec"]["versions"]
        for column in version["additionalPrinterColumns"]
    }
    assert missing(columns - {"Age"}) == []


def test_page_explains_every_log_event() -> None:
    logged = first_words("debug", "info", "warning", "error", "exception", "_troubled")
    assert {"started", "in_the_way", "store_unavailable"} <= logged
    assert missing(logged | {cause.value for cause in Cause}) == []


def test_page_explains_every_probe_and_role() -> None:
    assert missing({"/healthz", "/readyz", "/metrics", Role.LEADER.value, Role.STANDBY.value}) == []


def leads_somewhere(target: str) -> bool:
    """True if there is such a file, this one if none is named, and such a heading in it."""
    name, _, fragment = re.sub(r"\s+", " ", target).partition("#")
    file = CHECKOUT / "docs" / (name or "troubleshooting.md")
    if not fragment:
        return file.exists()
    lines = (line for line in file.read_text().splitlines() if line.startswith("#"))
    headings = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines}
    return fragment in headings


def test_every_link_leads_somewhere() -> None:
    assert [target for target in re.findall(r"\]\(([^)]+)\)", PAGE) if not leads_somewhere(target)] == []
