"""The rules of alerts, the component that installs them, and the dashboard."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import dashboard
from tests.alerts import COMPONENT
from tests.metrics import OF_HISTOGRAMS, described, series_names

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


# --- The component: base and overlays do without it, and its objects fit the Deployment --------------------


def test_component_has_every_file_of_its_folder_and_no_overlay_has_the_component() -> None:
    component = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())
    (dashboard,) = component["configMapGenerator"]
    files = {*component["resources"], *(each.partition("=")[2] for each in dashboard["files"])}
    assert files | {"kustomization.yaml", "rules.yaml"} == {each.name for each in COMPONENT.iterdir()}
    others = [*CHECKOUT.glob("manifests/base/*"), *CHECKOUT.glob("manifests/overlays/*/*")]
    assert [each for each in others if "monitoring.coreos.com" in each.read_text()] == []


def test_service_and_its_monitor_select_the_probes_of_every_replica() -> None:
    service, monitor = yaml.safe_load_all((COMPONENT / "service-monitor.yaml").read_text())
    deployment: Json = yaml.safe_load((CHECKOUT / "manifests" / "base" / "deployment.yaml").read_text())
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["ports"] == [
        {"name": "probes", "port": port["containerPort"], "targetPort": port["name"]}
    ]
    assert monitor["spec"]["selector"] == {"matchLabels": service["metadata"]["labels"]}
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == ["probes"]
    network = yaml.safe_load((CHECKOUT / "manifests" / "base" / "network.yaml").read_text())
    assert network["spec"]["ingress"][0]["ports"] == [{"port": port["containerPort"], "protocol": "TCP"}]


# --- The dashboard: each metric of the registry has a place, and Grafana gets what it needs ----------------


def used() -> set[str]:
    return {name for query in dashboard.queries().values() for name in re.findall(r"dispatcher_\w+", query)}


def test_every_metric_of_a_query_is_in_the_registry() -> None:
    assert used() <= series_names()


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {re.sub(f"_({'|'.join(OF_HISTOGRAMS)})$", "", name) for name in used()}
    assert shown == described().keys()


def test_rows_are_the_parts_of_the_dispatcher() -> None:
    rows = [each["title"] for each in dashboard.read()["panels"] if each["type"] == "row"]
    assert rows == ["Queue", "Dispatch", "Clusters", "Queues and quota", "Database and health"]


def test_every_variable_of_a_query_is_declared_and_filled_in_by_tests() -> None:
    declared = {f"${each['name']}" for each in dashboard.read()["templating"]["list"]}
    queries = [target["expr"] for panel in dashboard.read()["panels"] for target in panel.get("targets", ())]
    named = {name for query in queries for name in re.findall(r"\$\w+", query)}
    assert named <= declared | {dashboard.INTERVAL}
    assert not any("$" in query for query in dashboard.queries().values())


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard.read()["panels"]
    cells = [
        (column, line)
        for place in (each["gridPos"] for each in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({each["id"] for each in panels}) == len(panels)
