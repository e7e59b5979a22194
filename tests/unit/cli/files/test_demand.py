"""`dispatcher demand`: totals, the form of its output, and how it refuses a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dispatcher.__main__ import plugin_program
from tests.commands import Ran, Run, runner
from tests.unit.core.kinds.ray import (
    HEAD,
    WORKER,
    cluster,
    group,
    ray_cluster,
    ray_job,
    ray_service,
    template,
)

GIB = 2**30

Json = dict[str, Any]


@pytest.fixture
def demand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher demand …`."""
    return runner(monkeypatch, capsys, "demand")


@pytest.fixture(autouse=True)
def _no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPATCHER_DATABASE_URL", raising=False)


def obj(api_version: str, kind: str, spec: object, name: str = "x", **metadata: object) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def job(name: str = "train", requests: Json | None = None, **spec: object) -> Json:
    own = {"cpu": 1, "memory": "1Gi"} if requests is None else requests
    return obj("batch/v1", "Job", {"template": template(own), **spec}, name)


def appwrapper(*items: Json, name: str = "gang", **metadata: object) -> Json:
    spec = {"resources": {"GenericItems": list(items)}}
    return obj("workload.codeflare.dev/v1beta1", "AppWrapper", spec, name, **metadata)


def item(wrapped: Json, *declared: Json) -> Json:
    return {"generictemplate": wrapped, **({"custompodresources": list(declared)} if declared else {})}


async def shown(demand: Run, *documents: object) -> Any:  # noqa: ANN401  # JSON
    ran = await demand("-f", "-", "-o", "json", stdin=yaml.safe_dump_all(documents))
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


TPU_HEAD = template({"cpu": "8", "ephemeral-storage": "10Gi", "memory": "40G"})
TPU = {"cpu": "1", "ephemeral-storage": "10Gi", "google.com/tpu": "4", "memory": "40G"}


@pytest.mark.parametrize(
    ("wrapped", "pods", "requests"),
    [
        pytest.param(
            ray_cluster(TPU_HEAD, group(TPU, replicas=1, minReplicas=1, maxReplicas=1, numOfHosts=2)),
            3,
            {"cpu": 10000, "memory": 120000000000, "google.com/tpu": 8, "ephemeral-storage": 32212254720},
            id="ray-cluster.tpu-v4-multihost",
        ),
        pytest.param(
            ray_job(cluster(HEAD, group({"cpu": "200m"}, replicas=1, minReplicas=1, maxReplicas=5))),
            3,
            {"cpu": 1700, "memory": 2625634304},
            id="ray-job.sample",
        ),
        pytest.param(
            ray_service(
                cluster(
                    template({"cpu": 2, "memory": "32Gi"}),
                    group({"cpu": 24, "memory": "500Gi", "nvidia.com/gpu": 8}, replicas=2, minReplicas=2),
                )
            ),
            3,
            {"cpu": 50000, "memory": 1108101562368, "nvidia.com/gpu": 16},
            id="ray-service.deepseek",
        ),
    ],
)
async def test_total_is_that_of_the_pods_that_kuberay_makes(
    demand: Run, wrapped: Json, pods: int, requests: Json
) -> None:
    (single, wrapping) = await shown(demand, wrapped, appwrapper(item(wrapped)))
    assert single["total"] == wrapping["total"] == {"pods": pods, "requests": requests}


async def test_json_has_an_entry_for_each_object(demand: Run) -> None:
    worker = group(WORKER, replicas=2)
    worker["template"]["spec"] |= {"nodeSelector": {"gpu": "a100"}, "runtimeClassName": "kata"}
    found = await shown(demand, ray_cluster(HEAD, worker), obj("v1", "ConfigMap", None, "settings"))
    assert found == [
        {
            "kind": "RayCluster",
            "name": "x",
            "podSets": [
                {
                    "path": "spec.headGroupSpec.template",
                    "count": 1,
                    "requests": {"cpu": 1000, "memory": 2 * GIB},
                },
                {
                    "path": "spec.workerGroupSpecs[0].template",
                    "count": 2,
                    "requests": {"cpu": 1000, "memory": GIB},
                    "nodes": "gpu=a100",
                },
            ],
            "total": {"pods": 3, "requests": {"cpu": 3000, "memory": 4 * GIB}},
            "makesPods": True,
            "warnings": [],
            "unknown": [
                'spec.workerGroupSpecs[0].template.spec.runtimeClassName: the RuntimeClass "kata" may add its '
                "overhead to every pod"
            ],
        },
        {
            "kind": "ConfigMap",
            "name": "settings",
            "podSets": [],
            "total": {"pods": 0, "requests": {}},
            "makesPods": False,
            "warnings": [],
            "unknown": [],
        },
    ]


BESIDE = [
    obj("v1", "Service", {"ports": [{"port": 6379}]}),
    obj("rbac.authorization.k8s.io/v1", "ClusterRole", None, "system:reader"),
    obj("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", None),
    obj("scheduling.volcano.sh/v1beta1", "Queue", {"weight": 1}),
    obj("scheduling.run.ai/v2", "Queue", {"parentQueue": "all"}),
    obj("kueue.x-k8s.io/v1beta1", "LocalQueue", {"clusterQueue": "all"}, namespace="team-b"),
    obj("dispatcher.codeflare.dev/v1alpha1", "DispatchQueue", {}),
    obj("v1", "Namespace", None),
]
"""Objects without pods as they stand in one file with a gang."""


@pytest.mark.parametrize("beside", BESIDE, ids=lambda each: f"{each['apiVersion']} {each['kind']}")
async def test_object_without_pods_beside_a_gang_counts_nothing_and_is_listed_as_such(
    demand: Run, beside: Json
) -> None:
    written = yaml.safe_dump_all([beside, job()])
    as_json, as_text = (
        await demand("-f", "-", "-o", "json", stdin=written),
        await demand("-f", "-", stdin=written),
    )

    named = {"kind": beside["kind"], "name": beside["metadata"]["name"]}
    nothing = {"podSets": [], "total": {"pods": 0, "requests": {}}, "makesPods": False}
    assert (as_json.code, as_json.err) == (0, "")
    assert json.loads(as_json.out)[0] == {**named, **nothing, "warnings": [], "unknown": []}
    assert as_text.out.splitlines()[1].split("  ")[0] == f"{named['kind']}/{named['name']}"
    assert as_text.out.splitlines()[1].split()[1:] == ["no", "pods", "0", "-"]


async def test_kind_that_may_make_pods_beside_a_gang_refuses_the_file(demand: Run) -> None:
    """A Gateway is no Service: its controller may make a Deployment for it."""
    gateway = obj("gateway.networking.k8s.io/v1", "Gateway", {})
    ran = await demand("-f", "-", stdin=yaml.safe_dump_all([job(), gateway]))
    assert ran == Ran(
        2,
        "",
        'dispatcher: <stdin>: Gateway/x: kind: no template says what the pods ask for of a "Gateway". Wrap it in an '
        "AppWrapper that declares its pods.\n",
    )


async def test_files_without_any_object_that_makes_pods_are_refused(demand: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(yaml.safe_dump_all(BESIDE[:2]))
    ran = await demand("-f", str(tmp_path / "a"), "-f", str(tmp_path / "b"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"dispatcher: {tmp_path}/a, {tmp_path}/b: no object makes pods\n"


async def test_one_file_may_have_only_objects_without_pods(demand: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(yaml.safe_dump_all(BESIDE[:2]))
    (tmp_path / "b").write_text(yaml.safe_dump(job()))
    ran = await demand("-f", str(tmp_path / "a"), "-f", str(tmp_path / "b"), "-o", "json")
    assert (ran.code, [each["makesPods"] for each in json.loads(ran.out)]) == (0, [False, False, True])


async def test_appwrapper_and_suspended_job_count_as_making_pods(demand: Run) -> None:
    """They may have none now; the commands that submit and decide take them."""
    settings = obj("v1", "ConfigMap", None)
    for alone in (appwrapper(item(settings)), job(suspend=True)):
        (found,) = await shown(demand, alone)
        assert (found["total"]["pods"], found["makesPods"]) == (0, True)


RAY_JOB_OF_A_RUN = ray_job(cluster(HEAD, group(WORKER, replicas=2)))["spec"]
AT_ITS_TIMES = (
    "these are the pods of one run: it makes them again and again, at its own times, and an AppWrapper that wraps it "
    "declares its demand"
)


@pytest.mark.parametrize(
    ("scheduled", "paths", "total", "later"),
    [
        pytest.param(
            obj("ray.io/v1", "RayCronJob", {"schedule": "* * * * *", "jobTemplate": RAY_JOB_OF_A_RUN}),
            [
                "spec.jobTemplate.rayClusterSpec.headGroupSpec.template",
                "spec.jobTemplate.rayClusterSpec.workerGroupSpecs[0].template",
                "spec.jobTemplate.submitterPodTemplate",
            ],
            {"pods": 4, "requests": {"cpu": 3500, "memory": 4 * GIB + 200 * 2**20}},
            ["the gang starts with 3 of the 4 pods, and counts as 3; all have places"],
            id="RayCronJob",
        ),
        pytest.param(
            obj(
                "batch/v1",
                "CronJob",
                {"schedule": "@daily", "jobTemplate": {"spec": job(parallelism=3)["spec"]}},
            ),
            ["spec.jobTemplate.spec.template"],
            {"pods": 3, "requests": {"cpu": 3000, "memory": 3 * GIB}},
            [],
            id="CronJob",
        ),
    ],
)
async def test_demand_of_a_job_with_a_schedule_is_that_of_one_run(
    demand: Run, scheduled: Json, paths: list[str], total: Json, later: list[str]
) -> None:
    ran = await demand(
        "-f", "-", "-o", "json", stdin=yaml.safe_dump_all([scheduled, obj("v1", "ConfigMap", None)])
    )
    assert (ran.code, ran.err) == (0, "")
    found, _ = json.loads(ran.out)
    assert (found["kind"], found["name"]) == (scheduled["kind"], "x")
    assert ([each["path"] for each in found["podSets"]], found["total"]) == (paths, total)
    assert (found["makesPods"], found["warnings"][-1]) == (True, AT_ITS_TIMES)
    assert found["warnings"][:-1] == later


async def test_facts_of_a_run_that_only_a_cluster_has_have_their_path_in_the_whole_object(
    demand: Run,
) -> None:
    spec = {"jobTemplate": {"spec": job(requests={"cpu": 1})["spec"]}}
    (found,) = await shown(demand, obj("batch/v1", "CronJob", spec))
    assert found["unknown"] == [
        "spec.jobTemplate.spec.template.spec.containers[0]: has no request of memory; a LimitRange of the namespace "
        "may add one"
    ]


async def test_paths_in_an_appwrapper_name_the_wrapped_object(demand: Run) -> None:
    pod = {**obj("v1", "Pod", None), **template({"cpu": 1, "memory": 1})}
    generated = job()
    generated["metadata"] = {"generateName": "run-", "namespace": "team-a"}
    (found,) = await shown(demand, appwrapper(item(generated), item(pod), namespace="team-a"))
    assert [each["path"] for each in found["podSets"]] == ["Job/run-*:spec.template", "Pod/x"]
    assert found["kind"], found["name"] == ("AppWrapper", "gang")


async def test_v1beta2_is_read_like_v1beta1(demand: Run) -> None:
    unknown = obj("example.com/v1", "Simulation", {"worker": template(WORKER)})
    component = {"template": unknown, "podSets": [{"path": "template.spec.worker", "replicas": 3}]}
    wrapping = obj("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [component]})
    (found,) = await shown(demand, wrapping)
    assert found["podSets"][0]["path"] == "Simulation/x:spec.worker"
    assert found["total"] == {"pods": 3, "requests": {"cpu": 3000, "memory": 3 * GIB}}


async def test_namespace_may_be_left_to_kubectl(demand: Run) -> None:
    wrapped = job()
    wrapped["metadata"]["namespace"] = "team-a"
    (found,) = await shown(demand, appwrapper(item(wrapped)))
    assert found["total"]["pods"] == 1


async def test_larger_declaration_is_the_total_with_a_warning(demand: Run) -> None:
    (found,) = await shown(demand, appwrapper(item(job(), {"replicas": 1, "requests": {"cpu": 4}})))
    assert found["podSets"][0]["requests"] == {"cpu": 1000, "memory": GIB}
    assert found["total"] == {"pods": 1, "requests": {"cpu": 4000, "memory": GIB}}
    assert found["warnings"] == [
        "spec.resources.GenericItems[0].custompodresources: cpu: 4 declared, 1 by the template, memory: 0 "
        "declared, 1Gi by the template; the larger is charged"
    ]


async def test_declaration_takes_the_place_of_a_template_that_cannot_be_read(demand: Run) -> None:
    odd = job(suspend="no")
    (found,) = await shown(demand, appwrapper(item(odd, {"replicas": 2, "requests": {"cpu": 4}})))
    assert found["podSets"] == [{"path": "Job/train", "count": 2, "requests": {"cpu": 4000}}]
    assert (found["warnings"], found["unknown"]) == ([], [])


async def test_suspended_object_is_named(demand: Run) -> None:
    single, wrapping = await shown(demand, job(suspend=True), appwrapper(item(job(suspend=True))))
    assert single["total"] == wrapping["total"] == {"pods": 0, "requests": {}}
    assert single["warnings"] == ["it is suspended: it makes no pods until it is resumed"]
    assert wrapping["warnings"] == ["Job/train is suspended: it makes no pods until it is resumed"]


@pytest.mark.parametrize(
    ("spec", "unknown"),
    [
        pytest.param(template(WORKER)["spec"], [], id="all-known"),
        pytest.param(
            template({"cpu": 1}, {}, runtimeClassName="kata", overhead={"cpu": "100m"})["spec"],
            [
                "containers[0]: has no request of memory; a LimitRange of the namespace may add one",
                "containers[1]: has no request of cpu and memory; a LimitRange of the namespace may add one",
            ],
            id="requests-missing",
        ),
        pytest.param(
            template({"cpu": 1}, resources={"requests": {"memory": "1Gi"}})["spec"], [], id="of-the-whole-pod"
        ),
        pytest.param(
            {**template(WORKER)["spec"], "initContainers": [{"name": "i"}]},
            [
                "initContainers[0]: has no request of cpu and memory; a LimitRange of the namespace may add one"
            ],
            id="init-container",
        ),
        pytest.param(
            template(WORKER, resourceClaims=[{"name": "gpu"}])["spec"],
            ["resourceClaims: the devices of resource claims are not counted"],
            id="device-claims",
        ),
    ],
)
async def test_facts_that_only_a_cluster_has_are_named(demand: Run, spec: Json, unknown: list[str]) -> None:
    pod = {**obj("v1", "Pod", None), "spec": spec}
    single, wrapping = await shown(demand, pod, appwrapper(item(pod)))
    assert single["unknown"] == [f"spec.{each}" for each in unknown]
    assert wrapping["unknown"] == [f"Pod/x:spec.{each}" for each in unknown]


async def test_table_is_for_people_and_its_notes_are_on_stderr(demand: Run, tmp_path: Path) -> None:
    path = tmp_path / "gang.yaml"
    spread = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}}
    wrapped = job(parallelism=2, template=template(WORKER, affinity=apart, resourceClaims=[{"name": "a"}]))
    path.write_text(yaml.safe_dump(appwrapper(item(wrapped))))
    ran = await demand("-f", str(path))
    assert ran == Ran(
        0,
        "OBJECT           POD SET                  PODS  REQUESTS PER POD\n"
        "AppWrapper/gang  Job/train:spec.template  2     cpu: 1, memory: 1Gi\n"
        "AppWrapper/gang  total                    2     cpu: 2, memory: 2Gi\n",
        "AppWrapper/gang: Job/train:spec.template.spec.resourceClaims: the devices of resource claims are not "
        "counted\n",
    )
    wide = await demand("-f", str(path), "-o", "wide")
    assert wide.out.splitlines()[1].endswith("memory: 1Gi  apart by kubernetes.io/hostname")


async def test_spread_is_shown_in_words(demand: Run, tmp_path: Path) -> None:
    path = tmp_path / "job"
    constraint = {"topologyKey": "zone", "maxSkew": 1, "minDomains": 2, "whenUnsatisfiable": "DoNotSchedule"}
    spread = [{**constraint, "labelSelector": {}}]
    path.write_text(json.dumps(job(template=template(WORKER, topologySpreadConstraints=spread))))
    words = "spread over zone with a skew of at most 1 and at least 2 domains"
    wide, as_json = await demand("-f", str(path), "-o", "wide"), await demand("-f", str(path), "-o", "json")
    assert wide.out.splitlines()[1].endswith(f"  {words}")
    assert json.loads(as_json.out)[0]["podSets"][0]["spread"] == [words]


async def test_repulsion_between_templates_is_shown_in_words(demand: Run, tmp_path: Path) -> None:
    path, repelled = tmp_path / "cluster", {"matchLabels": {"ray.io/node-type": "worker"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": repelled}
    repel = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    head = {"template": template(WORKER, affinity=repel)}
    workers = [{"groupName": "gpus", "replicas": 2, "template": template(WORKER)}]
    path.write_text(
        json.dumps(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {"name": "x"},
                "spec": {"headGroupSpec": head, "workerGroupSpecs": workers},
            }
        )
    )
    wide, as_json = await demand("-f", str(path), "-o", "wide"), await demand("-f", str(path), "-o", "json")
    for row in wide.out.splitlines()[1:3]:
        assert row.endswith("  away from other templates by kubernetes.io/hostname")
    away = [each["away"] for each in json.loads(as_json.out)[0]["podSets"]]
    assert away == [["kubernetes.io/hostname"], ["kubernetes.io/hostname"]]


async def test_several_files_are_read_in_order(demand: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps(job(name)))
    ran = await demand("-f", str(tmp_path / "b"), "-f", str(tmp_path / "a"), "-o", "json")
    assert [each["name"] for each in json.loads(ran.out)] == ["b", "a"]


async def test_lists_are_taken_apart_and_empty_documents_skipped(demand: Run) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [job("a"), job("b")]}
    of_one_kind = {"apiVersion": "batch/v1", "kind": "JobList", "items": [job("c")]}
    del of_one_kind["items"][0]["kind"], of_one_kind["items"][0]["apiVersion"]  # type: ignore[index]
    found = await shown(demand, None, listed, of_one_kind, None)
    assert [(each["kind"], each["name"]) for each in found] == [("Job", "a"), ("Job", "b"), ("Job", "c")]


GOOD = yaml.safe_dump(job("good"))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        pytest.param("", "<stdin>: has no Kubernetes object", id="empty"),
        pytest.param("a: [", "<stdin>: line 2: did not find expected node content", id="no-yaml"),
        pytest.param("\x00", "<stdin>: ", id="nul"),
        pytest.param(GOOD + "---\n[]", "<stdin>: document 2: is no Kubernetes object, but a list", id="list"),
        pytest.param(
            "kind: List\nitems: [7]", "<stdin>: document 1: items[0]: is no Kubernetes object", id="item"
        ),
        pytest.param("a: !!set {b}", "<stdin>: has a value that JSON lacks: a set", id="set"),
        pytest.param("? [a]\n: b", "<stdin>: ", id="list-as-a-key"),
        pytest.param("a: !!python/object:os.system {}", "<stdin>: line 1: could not determine", id="python"),
        pytest.param("[" * 5000, "<stdin>: ", id="deep"),
        pytest.param(
            "{a: " * 700 + "}" * 700, "<stdin>: is nested more than 200 levels", id="deeper-than-json"
        ),
        pytest.param("kind: Job", "<stdin>: Job: apiVersion: is not an API version: null", id="no-version"),
        pytest.param("{}", "<stdin>: an object without a kind: apiVersion:", id="nothing"),
        pytest.param(
            yaml.safe_dump(job("\x1b[2J")),
            '<stdin>: Job/\\x1b[2J: metadata.name: "\\u001b[2J" is not',
            id="name",
        ),
        pytest.param(
            GOOD + "---\n" + yaml.safe_dump(job("bad", parallelism="2")),
            "<stdin>: Job/bad: spec.parallelism: must be a whole number. Correct the template.",
            id="field",
        ),
        pytest.param(
            yaml.safe_dump(job(requests={"cpu": "two"})),
            "<stdin>: Job/train: spec.template.spec.containers[0].resources.requests.cpu: 'two' is not a quantity",
            id="quantity",
        ),
        pytest.param(
            yaml.safe_dump(obj("example.com/v1", "Simulation", {})),
            '<stdin>: Simulation/x: kind: no template says what the pods ask for of a "Simulation"',
            id="unknown-kind",
        ),
        pytest.param(
            yaml.safe_dump(obj("apps/v1", "DaemonSet", {})),
            '<stdin>: DaemonSet/x: kind: no template says what the pods ask for of a "DaemonSet": it makes one on '
            "every node there is. Wrap it in an AppWrapper that declares its pods.",
            id="kind-that-is-known-not-to-tell-its-pods",
        ),
        pytest.param(
            yaml.safe_dump(
                obj("batch/v1", "CronJob", {"jobTemplate": {"spec": job(parallelism="2")["spec"]}})
            ),
            "<stdin>: CronJob/x: spec.jobTemplate.spec.parallelism: must be a whole number. Correct the template.",
            id="field-of-a-run",
        ),
        pytest.param(
            yaml.safe_dump(obj("ray.io/v1", "RayCronJob", {"jobTemplate": "nightly"})),
            "<stdin>: RayCronJob/x: spec.jobTemplate: must be an object. Correct the template.",
            id="run-that-is-no-object",
        ),
        pytest.param(
            yaml.safe_dump(obj("ray.io/v1", "RayCronJob", {"schedule": "@daily"})),
            "<stdin>: RayCronJob/x: spec.jobTemplate.rayClusterSpec.headGroupSpec",
            id="schedule-without-a-run",
        ),
        pytest.param(
            yaml.safe_dump(job(requests={"cpu": 2**60}, parallelism=2000)),
            "<stdin>: Job/train: ",
            id="too-much",
        ),
        pytest.param(
            yaml.safe_dump(appwrapper(item(job()), item(job("bad", parallelism=-1)))),
            "<stdin>: AppWrapper/gang: spec.resources.GenericItems[1].generictemplate.spec.parallelism: must be "
            "between 0 and 2147483647. Correct the template",
            id="field-of-a-wrapped-object",
        ),
        pytest.param(
            yaml.safe_dump(obj("workload.codeflare.dev/v1beta1", "AppWrapper", "x")),
            '<stdin>: AppWrapper/x: spec: must be an object, not "x"',
            id="spec-of-an-appwrapper",
        ),
        pytest.param(
            "apiVersion: mcad.ibm.com/v1beta1\nkind: AppWrapper\nmetadata: {}\nspec: {}",
            "<stdin>: AppWrapper: metadata.name: is not a name: null",
            id="appwrapper-without-a-name",
        ),
    ],
)
async def test_file_that_cannot_be_read_is_refused_in_one_line(
    demand: Run, written: str, problem: str
) -> None:
    ran = await demand("-f", "-", stdin=written)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dispatcher: {problem}")
    assert ran.err.count("\n") == 1
    assert ran.err.strip().isprintable()


async def test_file_that_is_missing_is_wrong_usage(demand: Run, tmp_path: Path) -> None:
    ran = await demand("-f", str(tmp_path / "nothing"))
    assert (ran.code, ran.out) == (2, "")
    assert "No such file" in ran.err


async def test_dates_and_keys_are_read_as_kubectl_reads_them(demand: Run) -> None:
    dated = yaml.safe_dump(job()).replace("name: train", "name: train\n  labels: {day: 2026-11-20}")
    numbered = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {1: a, true: b}\n"
    ran = await demand("-f", "-", stdin=f"{dated}---\n{numbered}")
    assert (ran.code, ran.err) == (0, "")


def test_kubectl_plugin_has_the_command_with_examples() -> None:
    shown_help = CliRunner().invoke(plugin_program, ["demand", "--help"])
    assert shown_help.exit_code == 0
    assert "Examples:\n    kubectl aw demand train.yaml" in shown_help.output


@pytest.mark.parametrize(
    ("manifest", "code", "said"),
    [
        (
            {**appwrapper(), "spec": {"resources": {"genericItems": []}}},
            *(0, 'AppWrapper/gang: unknown field "spec.resources.genericItems"; did you mean GenericItems?'),
        ),
        ({**appwrapper(), "kind": "Appwrapper"}, 2, 'but "Appwrapper". Did you mean AppWrapper?'),
        (
            {**appwrapper(), "apiVersion": "workload.codeflare.dev/v1beta3"},
            *(2, "Write workload.codeflare.dev/v1beta1, workload.codeflare.dev/v1beta2 or mcad.ibm.com/v1beta1."),
        ),
    ],
)  # fmt: skip
async def test_demand_reports_a_typing_error_in_the_appwrapper_itself(
    demand: Run, manifest: Json, code: int, said: str
) -> None:
    ran = await demand("-f", "-", stdin=yaml.safe_dump(manifest))

    assert (ran.code, said in ran.err) == (code, True), ran.err


# --- the paths that commands take ----------------------------------------------------------------------------


def written(folder: Path, **files: Json) -> Path:
    """A folder with these files, `__` for the dot in their names."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(yaml.safe_dump(content))
    return folder


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["jobs/b.yaml"], ["b"]),
        (["jobs/b.yaml", "-f", "jobs/a.json"], ["b", "a"]),
        (["jobs"], ["a", "b", "c"]),
        (["-f", "jobs", "-"], ["stdin", "a", "b", "c"]),
        (["-", "-f", "jobs/c.yml", "-f", "jobs/a.json"], ["stdin", "c", "a"]),
    ],
    ids=" ".join,
)
async def test_files_are_given_alone_or_after_an_option_and_folders_stand_for_theirs(
    demand: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], names: list[str]
) -> None:
    jobs = written(tmp_path / "jobs", b__yaml=job("b"), a__json=job("a"), c__yml=job("c"))
    written(jobs / "further", d__yaml=job("d"))
    (jobs / "notes.txt").write_text("no object")
    monkeypatch.chdir(tmp_path)
    ran = await demand(*asked, "-o", "json", stdin=yaml.safe_dump(job("stdin")))
    assert (ran.code, ran.err) == (0, "")
    assert [each["name"] for each in json.loads(ran.out)] == names


async def test_folder_without_files_and_stdin_twice_are_refused(demand: Run, tmp_path: Path) -> None:
    assert await demand("-", "-f", "-", stdin=yaml.safe_dump(job())) == Ran(
        2, "", "dispatcher: -: is there twice: stdin can be read once\n"
    )
    (tmp_path / "notes.txt").write_text("no object")
    assert await demand(str(tmp_path)) == Ran(
        2, "", f"dispatcher: {tmp_path}: has no file that ends with .yaml, .yml, .json\n"
    )
    written(tmp_path, kustomization__yaml={"resources": ["job.yaml"]}, job__yaml=job())
    assert await demand(str(tmp_path)) == Ran(
        2,
        "",
        f"dispatcher: {tmp_path}: has a kustomization: pipe kubectl kustomize {tmp_path} into the command, and give - "
        "instead\n",
    )


async def test_lists_of_objects_are_taken_apart(demand: Run) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [job("a"), job("b")]}
    of_jobs = {
        "apiVersion": "batch/v1",
        "kind": "JobList",
        "items": [{"metadata": {"name": "c"}, "spec": job()["spec"]}],
    }
    found = await shown(demand, listed, of_jobs)
    assert [(each["kind"], each["name"]) for each in found] == [("Job", "a"), ("Job", "b"), ("Job", "c")]


async def test_command_without_a_file_says_how_to_give_one(demand: Run) -> None:
    ran = await demand()
    assert (ran.code, ran.out) == (2, "")
    assert "give a FILE, alone or after -f; - reads stdin" in ran.err
