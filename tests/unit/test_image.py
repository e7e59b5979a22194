"""The image and the compose file agree with the program and with the Deployment, and hold no secret."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.probes import Health, Metrics, serve
from dispatcher.settings import PREFIX, Settings
from tests.unit.test_kustomizations import DEPLOYMENT, VERSION

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
DOCKERFILE = (CHECKOUT / "Dockerfile").read_text()
BUILDER, RUNTIME = re.split(r"^FROM .*\n", DOCKERFILE, flags=re.MULTILINE)[1:]
SERVICES: Json = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]
SECURITY: Json = DEPLOYMENT["spec"]["template"]["spec"]["securityContext"]
GIVEN = "${POSTGRES_PASSWORD:?write POSTGRES_PASSWORD into .env, docs/install.md has the command}"


def names_of_definitions() -> set[str]:
    """The names of the CustomResourceDefinitions in `crds/`."""
    return {yaml.safe_load(each.read_text())["metadata"]["name"] for each in CHECKOUT.glob("crds/*.yaml")}


def test_every_file_names_the_version_of_the_package() -> None:
    assert f"ARG VERSION={VERSION}\n" in RUNTIME
    assert {SERVICES[name]["image"] for name in ("migrate", "kubeconfig", "dispatcher")} == {
        f"${{DISPATCHER_IMAGE:-appwrapper-dispatcher:{VERSION}}}"
    }


def test_every_setting_in_these_files_is_one_of_the_dispatcher() -> None:
    written = {
        *re.findall(rf"{PREFIX}\w+(?==)", RUNTIME),
        *(name for each in SERVICES.values() for name in each.get("environment", {})),
    }
    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert {name for name in written if name.startswith(PREFIX)} <= settings


# --- the image ---------------------------------------------------------------------------------------


def test_image_takes_only_pinned_packages_and_leaves_the_tools_in_the_builder() -> None:
    assert "--require-hashes --only-binary :all: --requirement requirements.lock" in BUILDER
    installs = [line for line in DOCKERFILE.splitlines() if re.search(r"\b(install|wheel) --", line)]
    assert [line for line in installs if "--no-index" not in line] == []
    assert "pip" not in RUNTIME.replace("pipefail", "")


def test_base_images_are_pinned_by_digest() -> None:
    pinned = re.compile(r"@sha256:[0-9a-f]{64}\}?")
    [base] = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE)
    trial = (CHECKOUT / "manifests/components/trial-postgres/postgres.yaml").read_text()
    values = yaml.safe_load((CHECKOUT / "manifests/chart/values.yaml").read_text())
    [of_trial] = re.findall(r"^ +image: (.*)$", trial, re.MULTILINE)
    images = {
        of_trial,
        values["trialPostgres"]["image"],
        SERVICES["postgres"]["image"].split(":-")[1].rstrip("}"),
    }
    assert len(images) == 1, "one Postgres for every trial"
    assert [each for each in (base, *images) if not pinned.search(each)] == []


def test_image_runs_as_the_user_of_the_deployment() -> None:
    assert f"USER {SECURITY['runAsUser']}:{SECURITY['runAsGroup']}\n" in RUNTIME


def test_build_reads_only_what_the_wheel_is_made_of() -> None:
    ignored, *taken = (
        line for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    )
    assert ignored == "*"
    wheel = {
        "LICENSE",
        "README.md",
        "crds",
        "dispatcher",
        "migrations",
        "pyproject.toml",
        "requirements.lock",
    }
    assert set(taken) == {f"!{each}" for each in wheel} | {"**/__pycache__"}


async def health_check(port: int) -> int:
    """The exit code of the image's HEALTHCHECK for a dispatcher at this port, with a proxy in the environment."""
    [command] = re.findall(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", RUNTIME, re.MULTILINE)
    program, *arguments = json.loads(command)
    assert program == "python"
    environment = {
        "PATH": os.environ["PATH"],
        "DISPATCHER_LISTEN_PORT": str(port),
        "http_proxy": "http://localhost:1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def test_health_check_of_the_image_asks_the_dispatchers_own_endpoint() -> None:
    async with serve("127.0.0.1", 0, Health(), Metrics()) as port:
        assert await health_check(port) == 0
    assert await health_check(port) != 0


# --- compose -----------------------------------------------------------------------------------------


def test_services_start_one_after_the_other() -> None:
    healthy, done = {"condition": "service_healthy"}, {"condition": "service_completed_successfully"}
    assert {name: each.get("depends_on", {}) for name, each in SERVICES.items()} == {
        "postgres": {},
        "cluster": {},
        "migrate": {"postgres": healthy},
        "kubeconfig": {"cluster": healthy, "migrate": done},
        "dispatcher": {"postgres": healthy, "cluster": healthy, "migrate": done, "kubeconfig": done},
    }
    assert {name for name, each in SERVICES.items() if "healthcheck" in each} == {"postgres", "cluster"}


def test_password_is_in_no_file() -> None:
    values = {
        name: value
        for each in SERVICES.values()
        for name, value in each.get("environment", {}).items()
        if re.search("PASSWORD|TOKEN|SECRET", name)
    }
    assert values == {"POSTGRES_PASSWORD": GIVEN, "PGPASSWORD": GIVEN}
    assert ".env" in (CHECKOUT / ".gitignore").read_text().splitlines()


def test_administrators_kubeconfig_is_readable_by_its_users_alone(tmp_path: Path) -> None:
    assert SERVICES["cluster"]["environment"]["K3S_KUBECONFIG_MODE"] == "600"
    program, option, written = SERVICES["kubeconfig"]["entrypoint"]
    assert (program, option, written.count("65532, 65532")) == ("python", "-c", 1)
    (tmp_path / "administrator").mkdir()
    (tmp_path / "dispatcher").mkdir()
    (tmp_path / "administrator" / "kubeconfig").write_text("contexts: []")
    here = re.sub(r'"/(\w+/kubeconfig)"', rf'"{tmp_path}/\1"', written)
    here = here.replace("65532, 65532", f"{os.getuid()}, {os.getgid()}")
    for _ in range(2):  # and when the trial is started again
        subprocess.run([sys.executable, "-c", here], check=True, timeout=30)  # noqa: S603  # our own file
        copy = tmp_path / "dispatcher" / "kubeconfig"
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("contexts: []", 0o600)


def test_trial_cluster_installs_all_definitions_and_waits_for_them() -> None:
    waited = {each for each in SERVICES["cluster"]["healthcheck"]["test"] if each.startswith("crd/")}
    assert waited == {f"crd/{name}" for name in names_of_definitions()}
    mounted = [each.split(":") for each in SERVICES["cluster"]["volumes"] if "manifests" in each]
    assert [source for source, *_ in mounted] == ["./crds", "./manifests/policies"]


@pytest.mark.parametrize("name", ["migrate", "dispatcher"])
def test_containers_of_the_dispatcher_have_the_least_rights(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"], service["security_opt"]) == (
        True,
        ["ALL"],
        ["no-new-privileges:true"],
    )
