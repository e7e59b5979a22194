"""The bill of materials lists what the dispatcher runs with, as the lock pins it for the image."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.probes import Health, Metrics, serve
from dispatcher.settings import PREFIX, Settings
from release import sbom

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
VERSION = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
BASE = CHECKOUT / "manifests" / "base"
COMPONENTS = CHECKOUT / "manifests" / "components"
CHART = CHECKOUT / "manifests" / "chart"
DEPLOYMENT: Json = yaml.safe_load((BASE / "deployment.yaml").read_text())
POD: Json = DEPLOYMENT["spec"]["template"]["spec"]


def test_wheel_alone_is_made_without_helm(tmp_path: Path) -> None:
    """The same wheel as of a release, because the same function makes it."""
    command = [sys.executable, "-m", "release", "--wheel", str(tmp_path)]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, cwd=CHECKOUT, env=variables, check=True, capture_output=True)  # noqa: S603  # our own

    wheel, sums = f"appwrapper_dispatcher-{VERSION}-py3-none-any.whl", tmp_path / "SHA256SUMS"
    assert {each.name for each in tmp_path.iterdir()} == {wheel, sums.name}
    assert sums.read_text().split() == [hashlib.sha256((tmp_path / wheel).read_bytes()).hexdigest(), wheel]


def test_base_and_component_name_the_image_of_this_version() -> None:
    for folder in (BASE, COMPONENTS / "notify"):
        [image] = yaml.safe_load((folder / "kustomization.yaml").read_text())["images"]
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


def test_trial_postgres_admits_the_dispatcher_and_the_notifier_and_nobody_else() -> None:
    files = (COMPONENTS / "trial-postgres" / "postgres.yaml", COMPONENTS / "notify" / "notify.yaml")
    postgres, notify = ([*yaml.safe_load_all(each.read_text())] for each in files)
    [notifier] = [each for each in notify if each["kind"] == "Deployment"]
    [policy] = [each["spec"] for each in postgres if each["kind"] == "NetworkPolicy"]
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in (DEPLOYMENT, notifier)]
    [rule] = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": each}} for each in pods]


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


# --- The image and the compose file agree with the program and with the Deployment, and hold no secret -----


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
    assert {SERVICES[name]["image"] for name in ("migrate", "kubeconfig", "dispatcher", "notify")} == {
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
        "notify": {"postgres": healthy, "migrate": done},
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


@pytest.mark.parametrize("name", ["migrate", "dispatcher", "notify"])
def test_containers_of_the_dispatcher_have_the_least_rights(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"], service["security_opt"]) == (
        True,
        ["ALL"],
        ["no-new-privileges:true"],
    )


def test_notifier_starts_only_if_its_profile_is_asked_for() -> None:
    assert {name for name, each in SERVICES.items() if "profiles" in each} == {"notify"}
    example, inside, mode = SERVICES["notify"]["volumes"][0].rsplit(":", 2)
    assert (CHECKOUT / example.split(":-")[1].rstrip("}")).is_file()
    assert (SERVICES["notify"]["command"], mode) == (["notify", "--targets", inside], "ro")


def test_notifier_has_no_token_and_the_security_of_the_deployment() -> None:
    account, notifier, _ = yaml.safe_load_all((COMPONENTS / "notify" / "notify.yaml").read_text())
    pod = notifier["spec"]["template"]["spec"]
    assert account["automountServiceAccountToken"] is pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == SECURITY
    [container], [main] = pod["containers"], POD["containers"]
    for name in ("securityContext", "livenessProbe", "readinessProbe", "ports"):
        assert container[name] == main[name]


# --- the tests -------------------------------------------------------------------------------------------


LOCK = (CHECKOUT / "requirements.lock").read_text()
PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
MADE = datetime(2026, 1, 1, tzinfo=UTC)
TWO_VERSIONS = """\
# A comment.
some.package==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via other
some.package==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
other==3 \\
    --hash=sha256:dd
"""


def test_lock_is_read_for_the_python_of_the_image() -> None:
    assert sbom.read_lock(TWO_VERSIONS) == {
        "some-package": sbom.Pinned("1.0", ("aa", "bb")),
        "other": sbom.Pinned("3", ("dd",)),
    }


def test_closure_has_packages_that_packages_and_extras_require_and_none_of_another_system() -> None:
    found = sbom.closure(["psycopg[binary]>=3", "colorama; sys_platform == 'win32'"])

    assert found["psycopg"] == ["psycopg-binary", "typing-extensions"]
    assert "colorama" not in found
    assert found.keys() >= {"psycopg", "psycopg-binary", "typing-extensions"}


def test_bill_lists_what_the_project_requires_and_no_tool() -> None:
    bill = json.loads(sbom.render(PROJECT, LOCK, MADE))

    components = {each["name"]: each for each in bill["components"]}
    pinned = sbom.read_lock(LOCK)
    assert {name: each["version"] for name, each in components.items()} == {
        name: pinned[name].version for name in components
    }
    assert components.keys() >= {name for name, _ in sbom.parsed(sbom.requirements_of(PROJECT))}
    assert components.keys() & {"pytest", "ruff", "hatchling", "cyclonedx-python-lib"} == set()
    assert {
        name for name, each in components.items() if not (each.get("licenses") and each["hashes"])
    } == set()
    assert bill["metadata"]["component"]["name"] == PROJECT["name"]


def test_bill_is_the_same_for_the_same_lock_and_time() -> None:
    once = sbom.render(PROJECT, LOCK, MADE)

    assert sbom.render(PROJECT, LOCK, MADE) == once
    assert sbom.render(PROJECT, LOCK + "\n", MADE) != once
