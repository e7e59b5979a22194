"""The kustomizations name every file of their folders, and the Deployment agrees with the program."""

from __future__ import annotations

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
DEPLOYMENT: Json = yaml.safe_load((BASE / "deployment.yaml").read_text())
POD: Json = DEPLOYMENT["spec"]["template"]["spec"]


def test_base_names_the_image_of_this_version() -> None:
    [image] = yaml.safe_load((BASE / "kustomization.yaml").read_text())["images"]
    assert image == {"name": "appwrapper-dispatcher", "newTag": VERSION}


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
