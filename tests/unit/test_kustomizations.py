"""The kustomizations name every file of their folders; the Deployment and the chart's values agree with the program."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.settings import PREFIX, Settings

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
VERSION = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
BASE = CHECKOUT / "manifests" / "base"
CHART = CHECKOUT / "manifests" / "chart"
DEPLOYMENT: Json = yaml.safe_load((BASE / "deployment.yaml").read_text())
POD: Json = DEPLOYMENT["spec"]["template"]["spec"]


def test_base_names_the_image_of_this_version() -> None:
    [image] = yaml.safe_load((BASE / "kustomization.yaml").read_text())["images"]
    assert image == {"name": "appwrapper-dispatcher", "newTag": VERSION}


def test_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_schema_of_the_chart_knows_every_setting_that_the_chart_does_not_set_itself() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["settings"]["propertyNames"]["enum"]
    own = {"database_url", "kubeconfig", "listen_address", "listen_port"}
    assert known == [f"{PREFIX}{name.upper()}" for name in Settings.model_fields if name not in own]


def test_every_value_of_the_chart_has_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    values = yaml.safe_load("\n".join(lines))
    parts = {name for name, value in values.items() if isinstance(value, dict)}
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r" {0,2}[a-zA-Z]+:", line) and not before.lstrip().startswith("#")
    ]
    # The parts whose values have a comment each; `resources` has one for both.
    assert {line.strip().split(":")[0] for line in bare} <= parts | set(values["resources"])


def test_every_variable_of_the_deployment_is_a_setting() -> None:
    written = {
        each["name"] for kind in ("initContainers", "containers") for pod in POD[kind] for each in pod["env"]
    }
    assert written <= {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize("folder", ["crds", "manifests/policies"])
def test_kustomization_lists_every_file_of_its_folder(folder: str) -> None:
    listed = yaml.safe_load((CHECKOUT / folder / "Kustomization").read_text())["resources"]
    assert listed == sorted(each.name for each in (CHECKOUT / folder).glob("*.yaml"))


def test_probes_of_the_deployment_are_served() -> None:
    [container] = POD["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert probes == {
        "liveness": {"path": "/healthz", "port": "probes"},
        "readiness": {"path": "/readyz", "port": "probes"},
    }
    listens = {each["name"]: each.get("value") for each in container["env"]}
    assert [str(each["containerPort"]) for each in container["ports"]] == [listens["DISPATCHER_LISTEN_PORT"]]


def test_policies_and_budget_select_the_pods_of_the_deployment() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    budget = yaml.safe_load((BASE / "availability.yaml").read_text())["spec"]["selector"]
    network = yaml.safe_load((BASE / "network.yaml").read_text())["spec"]["podSelector"]
    assert budget == network == DEPLOYMENT["spec"]["selector"] == {"matchLabels": labels}
