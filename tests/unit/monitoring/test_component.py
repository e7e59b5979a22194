"""The component: base and overlays do without it, and its objects fit the Deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.alerts import COMPONENT

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[3]


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
