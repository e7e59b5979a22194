"""An afternoon on a cluster that was installed as docs/install.md says, by people who have Kubernetes' own roles alone.

ada has `edit` in namespace team-a, vic has `view` there, and olga is an operator: nothing else was given to them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.names import GROUPS_ANNOTATION, UID_LABEL, USER_ANNOTATION
from testbed import build
from testbed.plane import Plane, write_private
from testbed.postgres import clone_template, drop_database
from testbed.processes import Process, Supervisor
from tests.cluster.install.installation import CHECKOUT, Kubectl, Pod, apply, write_secret
from tests.cluster.manifests import (
    appwrapper,
    changed,
    daemonset,
    deployment,
    item,
    job,
    pod,
    replicaset,
    replication_controller,
    small_job,
    statefulset,
)
from tests.cluster.members.identities import NAMESPACE
from tests.cluster.test_submitter import until
from tests.commands import Ran, run_here

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(180)

TEAM = "team-a"
GPU = {"cpu": "100m", "nvidia.com/gpu": "1"}
REFUSED = "beside the queue. In namespace team-a only AppWrappers get devices"


@dataclass(frozen=True)
class Person:
    """Somebody with a kubeconfig, who types `kubectl aw` in namespace team-a, and has no login of the database."""

    kubeconfig: Path

    def aw(self, *arguments: str, stdin: str = "") -> Ran:
        """Run a command to its end."""
        return run_here(*arguments, stdin=stdin, KUBECONFIG=str(self.kubeconfig))

    def does(self, *arguments: str, stdin: str = "") -> str:
        """The output of a command that has to succeed."""
        ran = self.aw(*arguments, stdin=stdin)
        assert ran.code == 0, ran.err
        return ran.out

    def is_refused(self, *arguments: str, stdin: str = "") -> str:
        """The errors of a command that has to fail, in one line."""
        ran = self.aw(*arguments, stdin=stdin)
        assert ran.code == 1, (ran.out, ran.err)
        return " ".join(ran.err.split())


def person(plane: Plane, name: str) -> Person:
    """A user whom the administrator impersonates, in namespace team-a."""
    content = yaml.safe_load(plane.kubeconfig.read_text())
    for user in content["users"]:
        user["user"]["as"] = name
    for context in content["contexts"]:
        context["context"]["namespace"] = TEAM
    return Person(write_private(plane.folder / f"as-{name}.kubeconfig", yaml.safe_dump(content)))


@pytest.fixture(scope="module")
def module_url(postgres_url: str, database_template: str) -> Iterator[str]:
    """A database for all tests of this file."""
    name = f"aw_test_{uuid.uuid4().hex}"
    yield clone_template(postgres_url, database_template, name)
    drop_database(postgres_url, name)


@pytest.fixture(scope="module")
def dispatcher(supervisor: Supervisor, fresh: Plane, kubectl: Kubectl, module_url: str) -> Iterator[Process]:
    """The installed dispatcher; ada and vic have a role of Kubernetes in team-a, olga those of an operator."""
    apply(kubectl)
    write_secret(kubectl, module_url)
    kubectl("create", "namespace", TEAM)
    for user, role in (("ada", "edit"), ("vic", "view")):
        kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", TEAM)
    operator = ("operators", "--user=olga")
    kubectl("create", "clusterrolebinding", *operator, "--clusterrole=dispatcher-operator")
    kubectl("create", "rolebinding", *operator, "--role=dispatcher-operator", "-n", NAMESPACE)
    running = Pod(supervisor, fresh, kubectl)
    migration = running.run("migrate")
    assert migration.wait(60) == 0, migration.log.read_text()
    process = running.run("dispatcher")
    until_allowed(kubectl, "ada", "create", "appwrappers.workload.codeflare.dev")
    until_allowed(kubectl, "vic", "list", "appwrappers.workload.codeflare.dev")
    until_policies_are_enforced(fresh)
    yield process
    process.stop()
    assert process.exit_code == 0


@pytest.fixture(scope="module")
def ada(fresh: Plane, dispatcher: Process) -> Person:
    return person(fresh, "ada")


def until_allowed(kubectl: Kubectl, user: str, verb: str, resource: str) -> None:
    """Return once a user may; the controller manager adds the rules of aggregated roles a moment later."""
    question = {
        "user": user,
        "resourceAttributes": {
            "namespace": TEAM,
            "verb": verb,
            "group": resource.partition(".")[2],
            "resource": resource.partition(".")[0],
        },
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": question}

    def is_allowed() -> bool:
        answer = json.loads(kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
        return bool(answer["status"]["allowed"])

    until(is_allowed)


def until_policies_are_enforced(plane: Plane) -> None:
    """Return once the author policy refuses what ada may not wrap."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}}
    manifest = yaml.safe_dump(appwrapper("of-a-role", item(role)))
    ada, refusal = person(plane, "ada"), "may not do everything with roles"
    until(lambda: refusal in ada.aw("submit", "-", "--dry-run", stdin=manifest).err)


def until_queued(person: Person, name: str) -> None:
    """Return once the queue shows the AppWrapper with the reason why it waits."""

    def is_queued() -> bool:
        rows = json.loads(person.does("queue", "-o", "json"))
        return any(each["reason"] for each in rows if each["name"] == name)

    until(is_queued)


def test_user_with_edit_alone_spends_the_afternoon(ada: Person) -> None:
    trial = appwrapper("trial", item(job("trial", 2)))
    large = appwrapper("large", item(job("large", 2, cpu="7")), priority=9)
    assert (
        ada.does("submit", "-", stdin=yaml.safe_dump_all([trial]))
        == "team-a/trial submitted\nteam-a/trial dispatched to hub\n"
    )
    assert ada.does("wait", "trial", "--for", "running", "--timeout", "1m").endswith("Running on hub\n")
    ada.does("submit", "-", stdin=yaml.safe_dump(large))
    ada.does("wait", "large", "--for", "running", "--timeout", "1m")
    ada.does("submit", "-", stdin=yaml.safe_dump(appwrapper("huge", item(job("huge", 2, cpu="7")))))
    until_queued(ada, "huge")

    [waits] = json.loads(ada.does("queue", "-o", "json"))
    assert (waits["name"], waits["user_name"]) == ("huge", TEAM)
    assert "team-a/huge" in ada.does("explain", "huge")
    assert "State:" in ada.does("show", "trial")
    assert {each["name"] for each in json.loads(ada.does("running", "-o", "json"))} == {"trial", "large"}
    assert ada.does("priority", "5", "huge") == "team-a/huge has priority 5, before 0\n"
    assert ada.does("hold", "large", "--evict") == "team-a/large held\n"
    assert ada.does("release", "large") == "team-a/large released\n"
    assert "kubectl logs -n team-a" in ada.does("logs", "trial", "--commands")
    ada.does("cancel", "large", "huge")
    # A kind of an operator, which `edit` does not have by itself.
    ray = (CHECKOUT / "examples" / "aw-raycluster-glue.yaml").read_text()
    submitted, decided = ada.does("submit", "-", stdin=ray).splitlines()
    assert submitted == "team-a/raycluster-glue submitted"
    # What was cancelled may still hold its room, and then it waits at first.
    assert decided.startswith(
        ("team-a/raycluster-glue dispatched to hub", "team-a/raycluster-glue waits at position 1 of 1:")
    )
    ada.does("wait", "raycluster-glue", "--for", "running", "--timeout", "1m")

    assert "team-a/trial deleted" in ada.does("cancel", "trial", "raycluster-glue")
    gone = ada.does("show", "trial", "-o", "json")
    [told] = json.loads(gone)
    assert told["state"] == "Deleted"
    assert {"Dispatched", "Running"} <= {each["reason"] for each in told["events"]}


def test_user_with_edit_has_no_rights_beyond_the_namespace(ada: Person) -> None:
    assert "dispatchqueues" in ada.is_refused("queues", "hold", "default")
    assert "memberclusters" in ada.is_refused("clusters", "cordon", "east")
    assert "cannot" in ada.is_refused("queue", "-n", "default")
    assert "the hub does not allow it" in ada.is_refused("clusters", "list")


def test_user_with_view_sees_and_changes_nothing(fresh: Plane, ada: Person) -> None:
    vic = person(fresh, "vic")
    ada.does("submit", "-", stdin=yaml.safe_dump(small_job("seen")))
    assert "State:" in vic.does("show", "seen")
    assert "cannot delete" in vic.is_refused("cancel", "seen")
    assert "cannot create" in vic.is_refused("submit", "-", stdin=yaml.safe_dump(small_job("other")))
    ada.does("cancel", "seen")


# --- nobody beside the queue ---------------------------------------------------------------------------------


def gpu_job(name: str) -> Json:
    """A plain Job of one pod with a GPU."""
    resources = {"requests": GPU, "limits": {"nvidia.com/gpu": "1"}}
    return changed(job(name), "spec.template.spec.containers.0.resources", resources)


def gpu_pod(name: str, **labels: str) -> Json:
    """A plain pod with a GPU."""
    bare = changed(pod(name), "spec.containers.0.resources", {"limits": {"nvidia.com/gpu": "1"}})
    return changed(bare, "metadata.labels", labels)


def with_gpu(workload: Json, **labels: str) -> Json:
    """The same workload, whose pods have a GPU and more labels."""
    template = workload["spec"]["template"]
    labelled = {**template["metadata"].get("labels", {}), **labels}
    of_pods = changed(workload, "spec.template.metadata.labels", labelled)
    return changed(of_pods, "spec.template.spec.containers.0.resources", {"limits": {"nvidia.com/gpu": "1"}})


def owned(manifest: Json, api_version: str, kind: str) -> Json:
    """The same object, which says that another one is its controller."""
    owner = {"apiVersion": api_version, "kind": kind, "name": "owner", "uid": "of-owner", "controller": True}
    return changed(manifest, "metadata.ownerReferences", [owner])


@pytest.fixture
def queued_devices(ada: Person, kubectl: Kubectl, fresh: Plane) -> Iterator[None]:
    """Namespace team-a, in which only AppWrappers get devices."""
    label = "dispatcher.codeflare.dev/devices"
    kubectl("label", "namespace", TEAM, f"{label}=queued")
    until(lambda: REFUSED in created(fresh, gpu_pod("probe"), "--dry-run=server"))
    yield
    kubectl("label", "namespace", TEAM, f"{label}-")


def kubectl_as(plane: Plane, user: str, *arguments: str, stdin: str = "") -> str:
    """What kubectl says to a user in team-a, in one line."""
    ran = subprocess.run(  # noqa: S603  # our own
        [str(plane.kubectl), f"--as={user}", "-n", TEAM, *arguments],
        input=stdin,
        env=plane.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return " ".join((ran.stdout + ran.stderr).split())


def created(plane: Plane, manifest: Json, *flags: str, by: str = "ada") -> str:
    """What kubectl says to a user who creates an object in team-a, in one line."""
    return kubectl_as(plane, by, "create", "-f", "-", *flags, stdin=json.dumps(manifest))


def test_devices_are_got_by_the_queue_alone(
    ada: Person, fresh: Plane, kubectl: Kubectl, queued_devices: None
) -> None:
    forged = gpu_pod("forged", **{UID_LABEL: "of-another"})
    for manifest in (gpu_job("plain"), gpu_pod("plain"), forged):
        said = created(fresh, manifest)
        assert f"asks for nvidia.com/gpu {REFUSED}" in said
        assert "kubectl aw submit FILE" in said
    assert REFUSED in created(fresh, with_gpu(deployment("served")))
    assert "created" in created(fresh, job("without"))

    # Neither the gang's Job, nor the pods that the Job controller makes of it, nor those of an operator's DaemonSet are
    # refused.
    ada.does("submit", "-", stdin=yaml.safe_dump(appwrapper("queued", item(gpu_job("queued")))))
    ada.does("wait", "queued", "--for", "running", "--timeout", "1m")
    kubectl("create", "-n", TEAM, "-f", "-", stdin=json.dumps(with_gpu(daemonset("each"))))
    kubectl("wait", "pod", "-l", "app=each", "-n", TEAM, "--for=create", "--timeout=60s")

    said = ada.is_refused("explain", "without")
    assert "Job team-a/without is not in the queue" in said
    ada.does("cancel", "queued")
    kubectl("delete", "daemonset/each", "job/without", "-n", TEAM, "--timeout=60s")


OF_A_GANG = {UID_LABEL: "of-a-gang"}
OPERATORS = {"kuberay": "pods,jobs.batch", "jobset": "jobs.batch", "lws": "pods,statefulsets.apps"}
"""What the ClusterRoles of these operators have of the objects that the policy sees.

Source: config/rbac/role.yaml of KubeRay and LeaderWorkerSet, config/components/rbac/role.yaml of JobSet
"""


def account(name: str, namespace: str = "operators") -> str:
    """The user name of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"


@pytest.fixture
def operators(fresh: Plane, kubectl: Kubectl, queued_devices: None) -> Iterator[None]:
    """Service accounts with the rights of operators; that of `of-one-team` has rights in team-a alone."""
    for name, resources in OPERATORS.items():
        rights = ("--verb=create,get,list,watch,update,patch,delete", f"--resource={resources}")
        kubectl("create", "clusterrole", name, *rights)
        bound = (f"--clusterrole={name}", f"--serviceaccount=operators:{name}")
        kubectl("create", "clusterrolebinding", name, *bound)
    bound = ("--clusterrole=admin", "--serviceaccount=operators:of-one-team")
    kubectl("create", "rolebinding", "of-one-team", *bound, "-n", TEAM)
    yield
    kubectl("delete", "rolebinding", "of-one-team", "-n", TEAM)
    kubectl("delete", "clusterrolebinding,clusterrole", *OPERATORS)


def test_controllers_make_the_pods_of_gangs(fresh: Plane, operators: None) -> None:
    of_a_gang = gpu_pod("g", **OF_A_GANG)
    core = "kube-system"
    made = [
        (account("job-controller", core), owned(of_a_gang, "batch/v1", "Job")),
        (account("deployment-controller", core), owned(with_gpu(replicaset("r")), "apps/v1", "Deployment")),
        (account("replicaset-controller", core), owned(of_a_gang, "apps/v1", "ReplicaSet")),
        (account("statefulset-controller", core), owned(of_a_gang, "apps/v1", "StatefulSet")),
        (account("daemon-set-controller", core), owned(gpu_pod("d"), "apps/v1", "DaemonSet")),
        (account("cronjob-controller", core), owned(gpu_job("j"), "batch/v1", "CronJob")),
        (account("kuberay"), owned(of_a_gang, "ray.io/v1", "RayCluster")),
        (account("kuberay"), owned(with_gpu(job("j"), **OF_A_GANG), "ray.io/v1", "RayJob")),
        (account("jobset"), owned(with_gpu(job("j"), **OF_A_GANG), "jobset.x-k8s.io/v1alpha2", "JobSet")),
        (account("lws"), owned(with_gpu(statefulset("s"), **OF_A_GANG), "v1", "Pod")),
    ]
    answers = [created(fresh, manifest, "--dry-run=server", by=user) for user, manifest in made]
    assert [each for each in answers if not each.endswith("created (server dry run)")] == []


def test_label_and_owner_of_no_controller_get_no_device(fresh: Plane, operators: None) -> None:
    of_a_gang = gpu_pod("g", **OF_A_GANG)
    dispatcher = account("dispatcher", NAMESPACE)
    made = [
        ("ada", owned(of_a_gang, "v1", "ConfigMap")),
        ("ada", owned(gpu_pod("d"), "apps/v1", "DaemonSet")),
        ("ada", owned(with_gpu(job("j"), **OF_A_GANG), "v1", "ConfigMap")),
        ("ada", with_gpu(job("j"), **OF_A_GANG)),
        ("ada", owned(gpu_job("j"), "batch/v1", "CronJob")),
        ("ada", with_gpu(replicaset("r"), **OF_A_GANG)),
        ("ada", owned(with_gpu(replicaset("r"), **OF_A_GANG), "apps/v1", "Deployment")),
        ("ada", with_gpu(replication_controller("r"), **OF_A_GANG)),
        (account("of-one-team"), owned(of_a_gang, "ray.io/v1", "RayCluster")),
        (account("job-controller", "kube-system"), owned(gpu_pod("p"), "batch/v1", "Job")),
        (account("kuberay"), owned(gpu_pod("p"), "apps.example.com/v1", "DaemonSet")),
        (dispatcher, gpu_job("j")),
    ]
    answers = [created(fresh, manifest, "--dry-run=server", by=user) for user, manifest in made]
    assert [each for each in answers if REFUSED not in each] == []


CRON_JOB = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "later"},
    "spec": {
        "schedule": "0 0 1 1 *",
        "jobTemplate": {"spec": {"template": job("later")["spec"]["template"]}},
    },
}
WITHOUT_DEVICES = (
    changed(job("later"), "spec.suspend", value=True),
    CRON_JOB,
    deployment("later"),
    statefulset("later"),
    replicaset("later"),
    replication_controller("later"),
)
"""What makes pods, which may be given other pods later; a Job only as long as it is suspended."""


@pytest.mark.parametrize("plain", WITHOUT_DEVICES, ids=lambda each: each["kind"])
def test_device_and_label_that_are_added_later_are_refused(
    fresh: Plane, kubectl: Kubectl, queued_devices: None, plain: Json
) -> None:
    kind = plain["kind"].lower()

    def patch(metadata: Json, **of_container: Json) -> list[str]:
        pods = {"metadata": metadata, "spec": {"containers": [{"name": "main", **of_container}]}}
        template = {"spec": {"template": pods}}
        written = {"spec": {"jobTemplate": template}} if kind == "cronjob" else template
        return ["patch", kind, "later", "-p", json.dumps(written)]

    assert "created" in created(fresh, plain)
    device = {"limits": {"nvidia.com/gpu": "1"}}
    assert REFUSED in kubectl_as(fresh, "ada", *patch({}, resources=device))
    labelled = {"labels": OF_A_GANG}
    assert REFUSED in kubectl_as(fresh, "ada", *patch(labelled, resources=device))

    # Who may make such objects in every namespace gave it both. Its user may change what is neither.
    assert kubectl(*patch(labelled, resources=device), "-n", TEAM).endswith("patched\n")
    assert "patched" in kubectl_as(fresh, "ada", *patch({"annotations": {"seen": "yes"}}))
    kubectl("delete", kind, "later", "-n", TEAM, "--timeout=60s")


NO_DAEMONSET = f"{REFUSED}: a DaemonSet with devices is made by an administrator or a listed operator"


@pytest.fixture
def makers_of_daemonsets(fresh: Plane, kubectl: Kubectl, queued_devices: None) -> Iterator[None]:
    """Two service accounts and a user who may create and change DaemonSets in every namespace."""
    kubectl("create", "clusterrole", "daemonsets", "--verb=create,get,patch", "--resource=daemonsets.apps")
    accounts = (
        "--serviceaccount=operators:collectors",
        "--serviceaccount=gpu-operator:driver",
        "--user=root",
    )
    kubectl("create", "clusterrolebinding", "daemonsets", "--clusterrole=daemonsets", *accounts)
    plain = daemonset("plain")
    until(lambda: "created" in created(fresh, plain, "--dry-run=server", by=account("collectors")))
    yield
    kubectl("delete", "clusterrolebinding/daemonsets", "clusterrole/daemonsets")


def test_operator_makes_daemonsets_with_devices_only_if_its_namespace_is_listed(
    fresh: Plane, makers_of_daemonsets: None
) -> None:
    every = with_gpu(daemonset("every"))
    for_a_user = owned(every, "opentelemetry.io/v1beta1", "OpenTelemetryCollector")
    refused = [
        created(fresh, manifest, "--dry-run=server", by=account("collectors"))
        for manifest in (every, for_a_user)
    ]
    assert [each for each in refused if NO_DAEMONSET not in each] == []
    made = [
        created(fresh, every, "--dry-run=server", by=user)
        for user in (account("driver", "gpu-operator"), "root")
    ]
    assert [each for each in made if not each.endswith("created (server dry run)")] == []


def test_operator_changes_a_daemonset_that_is_there_if_it_asks_no_more(
    fresh: Plane, kubectl: Kubectl, makers_of_daemonsets: None
) -> None:
    def patched(pods: Json, by: str) -> str:
        return kubectl_as(
            fresh, by, "patch", "daemonset", "older", "-p", json.dumps({"spec": {"template": pods}})
        )

    def of_container(**fields: object) -> Json:
        return {"spec": {"containers": [{"name": "main", **fields}]}}

    collectors, two = account("collectors"), {"nvidia.com/gpu": "2"}
    kubectl("create", "-n", TEAM, "-f", "-", stdin=json.dumps(with_gpu(daemonset("older"))))
    assert "patched" in patched(of_container(image="newer"), collectors)
    asks_more: list[Json] = [
        of_container(resources={"requests": two, "limits": two}),
        {"metadata": {"labels": OF_A_GANG}},
        {"spec": {"nodeName": "another"}},
        {"spec": {"nodeSelector": {"pool": "large"}}},
        {"spec": {"affinity": {"podAntiAffinity": {}}}},
        {"spec": {"tolerations": [{"operator": "Exists"}]}},
    ]
    assert [each for each in asks_more if NO_DAEMONSET not in patched(each, collectors)] == []
    # A user of the namespace did not make it, and would take its devices by another image.
    assert NO_DAEMONSET in patched(of_container(image="mine"), "ada")
    kubectl("delete", "daemonset/older", "-n", TEAM, "--timeout=60s")


def test_daemonset_with_devices_is_made_by_no_user_of_a_namespace(
    fresh: Plane, kubectl: Kubectl, queued_devices: None
) -> None:
    refused = NO_DAEMONSET
    every, with_owner = with_gpu(daemonset("every")), owned(with_gpu(daemonset("every")), "v1", "ConfigMap")
    assert refused in created(fresh, every)
    assert refused in created(fresh, with_owner)
    # The dispatcher has the right where AppWrappers may wrap DaemonSets.
    wrapped = with_gpu(daemonset("every"), **OF_A_GANG)
    assert refused in created(fresh, wrapped, "--as-group=system:masters", by="root")

    assert "created" in created(fresh, daemonset("every"))
    asks = [{"op": "replace", "path": "/spec/template", "value": every["spec"]["template"]}]
    more = ("patch", "daemonset", "every", "--type=json", "-p", json.dumps(asks))
    assert refused in kubectl_as(fresh, "ada", *more)
    assert "annotated" in kubectl_as(fresh, "ada", "annotate", "daemonset", "every", "seen=yes")
    assert kubectl(*more, "-n", TEAM).endswith("patched\n")
    assert "annotated" in kubectl_as(
        fresh, "ada", "annotate", "daemonset", "every", "seen=again", "--overwrite"
    )
    kubectl("delete", "daemonset/every", "-n", TEAM, "--timeout=60s")


# --- who submitted, where the API server cannot write it -----------------------------------------------------


def test_user_is_named_by_submit_and_nobody_poses_as_another(
    ada: Person, fresh: Plane, kubectl: Kubectl
) -> None:
    kubectl("apply", "-f", str(CHECKOUT / "manifests" / "submitter-check-policy.yaml"))
    forged = small_job("forged")
    forged["metadata"]["annotations"] = {USER_ANNOTATION: "root"}
    until(lambda: "and you are ada" in created(fresh, forged, "--dry-run=server"))

    foreign = small_job("foreign")
    foreign["metadata"]["annotations"] = {USER_ANNOTATION: "ada", GROUPS_ANNOTATION: "system:masters"}
    assert "has a group that you are not in" in created(fresh, foreign)
    suspended = appwrapper("named", item(job("named")), suspend=True)
    ada.does("submit", "-", stdin=yaml.safe_dump(suspended))
    found = kubectl.get("aw", "named", "-n", TEAM)
    assert found["metadata"]["annotations"][USER_ANNOTATION] == "ada"
    assert by_hand(ada, fresh, changed(suspended, "metadata.name", "by-hand")).endswith("by-hand created")
    assert kubectl.get("aw", "by-hand", "-n", TEAM)["metadata"]["annotations"][USER_ANNOTATION] == "ada"
    assert "created" in created(fresh, changed(suspended, "metadata.name", "unnamed"))
    refused = subprocess.run(  # noqa: S603  # our own
        [str(fresh.kubectl), "-n", TEAM, "annotate", "aw", "unnamed", f"{USER_ANNOTATION}=root"],
        env=fresh.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot be added, changed or removed" in " ".join(refused.stderr.split())
    ada.does("cancel", "named", "by-hand", "unnamed")
    kubectl("delete", "-f", str(CHECKOUT / "manifests" / "submitter-check-policy.yaml"))


def by_hand(person: Person, plane: Plane, manifest: Json) -> str:
    """What the command of docs/history.md for other tools says, typed by a person for this file."""
    page = (CHECKOUT / "docs" / "history.md").read_text(encoding="utf-8")
    command = page[page.index("kubectl annotate --local") :].partition("```")[0]
    file = plane.folder / "train.yaml"
    file.write_text(yaml.safe_dump(manifest))
    return typed(plane, person.kubeconfig, command.replace("train.yaml", str(file)))


def typed(plane: Plane, kubeconfig: Path, commands: str) -> str:
    """What commands of our own pages say in a shell, each of which has to succeed."""
    programs = (build.ensure().kubectl.parent, Path(sys.executable).parent, os.environ["PATH"])
    ran = subprocess.run(  # noqa: S603  # our own page
        ["bash", "-ec", commands],  # noqa: S607
        env={
            **plane.environment,
            "PATH": os.pathsep.join(map(str, programs)),
            "KUBECONFIG": str(kubeconfig),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


# --- a new team, late because a declared queue ends the queue that the others share ---------------------------


def test_commands_for_a_new_team_give_its_users_a_queue(
    fresh: Plane, kubectl: Kubectl, dispatcher: Process
) -> None:
    page = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
    commands = page[page.index("kubectl create namespace team-a") :].partition("```")[0]
    said = typed(fresh, fresh.kubeconfig, commands.replace("team-a", "team-b"))
    assert "\nyes\n" in said
    assert "team-b" in said.partition("\nyes\n")[2]

    # A controller has to count a new kind once before its quota admits any, which takes it up to minutes.
    kubectl("delete", "quota", "team-b", "-n", "team-b")
    of_the_team = ("-n", "team-b", "--as=bea", "--as-group=team-b")
    first = appwrapper("first", item(gpu_job("first")))
    kubectl("create", *of_the_team, "-f", "-", stdin=json.dumps(first))
    kubectl("wait", "aw/first", *of_the_team, "--for=condition=Running", "--timeout=60s")
    until(lambda: kubectl.get("dispatchqueue", "team-b").get("status", {}).get("running") == 1)
    kubectl("delete", "aw/first", *of_the_team, "--timeout=60s")


# --- operators, last because a removed member keeps gangs from the hub for ten minutes ------------------------


def test_operator_adds_a_member_where_the_dispatcher_reads_it(
    fresh: Plane, kubectl: Kubectl, dispatcher: Process
) -> None:
    olga = person(fresh, "olga")
    out = olga.does("clusters", "add", "east", "--member-kubeconfig", str(fresh.kubeconfig), "--yes")
    assert f"Secret {NAMESPACE}/cluster-east created" in out
    stored = kubectl.get("secret", "cluster-east", "-n", NAMESPACE)["data"]["kubeconfig"]
    assert yaml.safe_load(base64.b64decode(stored))["kind"] == "Config"
    said = olga.is_refused(
        "clusters", "add", "west", "--member-kubeconfig", str(fresh.kubeconfig), "-n", TEAM
    )
    assert f"runs in namespace {NAMESPACE}, and reads no Secret of {TEAM}: nothing was written" in said
    assert f"Secret {NAMESPACE}/cluster-east removed" in olga.does("clusters", "remove", "east", "--force")
