"""The alerts: what promtool says of them, and what they say of each other, the registry and docs/operations.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts import COMPONENT
from tests.metrics import described, series_names

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[3]
CASES = Path(__file__).parent / "rules_test.yaml"
OPERATIONS = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")


def run(promtool: Path, *arguments: str) -> str:
    """The output of promtool; fails with it if promtool does."""
    ran = subprocess.run(  # noqa: S603
        [promtool, *arguments], capture_output=True, text=True, check=False, cwd=CHECKOUT
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_promtool_finds_no_fault_in_the_rules(promtool: Path) -> None:
    assert "11 rules found" in run(promtool, "check", "rules", "--lint-fatal", str(COMPONENT / "rules.yaml"))


def test_each_alert_fires_and_stays_quiet_on_made_up_series(promtool: Path) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", str(CASES))


def test_a_false_expectation_fails(promtool: Path, tmp_path: Path) -> None:
    cases = CASES.read_text().replace("../../../manifests", str(CHECKOUT / "manifests"))
    wrong = tmp_path / "rules_test.yaml"
    wrong.write_text(cases.replace('alertname="DispatcherNoLeader"', 'alertname="DispatcherOther"'))
    ran = subprocess.run([promtool, "test", "rules", wrong], capture_output=True, check=False)  # noqa: S603
    assert ran.returncode == 1


def test_every_alert_has_a_case_in_which_it_fires(rules: dict[str, Json]) -> None:
    fires = set(re.findall(r'ALERTS\{alertname="(\w+)"', CASES.read_text()))
    assert fires == rules.keys()


def test_operator_and_prometheus_get_the_same_rules() -> None:
    plain = yaml.safe_load((COMPONENT / "rules.yaml").read_text())
    assert yaml.safe_load((COMPONENT / "prometheus-rule.yaml").read_text())["spec"] == plain


def test_alerts_use_metrics_and_labels_of_the_registry(rules: dict[str, Json]) -> None:
    metrics = described()
    for name, rule in rules.items():
        used = re.findall(r"(dispatcher_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert {each for each, _ in used} <= series_names(), name
        for metric, matchers in used:
            labels = re.findall(r"(\w+)=~?", matchers)
            assert set(labels) <= set(metrics[metric].labels if labels else ()), name


@pytest.mark.parametrize("key", ["summary", "description", "runbook"])
def test_every_alert_says_what_happens_and_where_to_read_on(rules: dict[str, Json], key: str) -> None:
    assert [name for name, rule in rules.items() if not rule["annotations"].get(key)] == []
    assert {rule["labels"]["severity"] for rule in rules.values()} == {"critical", "warning"}


def test_every_alert_has_its_section_and_no_other_has_one(rules: dict[str, Json]) -> None:
    sections = re.findall(r"^### (Dispatcher\w+)$", OPERATIONS, re.MULTILINE)
    assert sections == list(rules)
    runbooks = {name: rule["annotations"]["runbook"] for name, rule in rules.items()}
    assert runbooks == {name: f"docs/operations.md#{name.lower()}" for name in rules}
