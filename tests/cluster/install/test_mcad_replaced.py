"""docs/from-mcad.md, on a cluster with MCAD's definition and AppWrappers that were stored under it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.golden import COMPLETED_BY_MCAD, RECORDED_BY_MCAD, as_mcad_created
from tests.cluster.install.installation import CHECKOUT, Kubectl, Pod, apply, write_secret

pytestmark = pytest.mark.exhaustive

Json = dict[str, Any]
APPWRAPPERS: Final = "appwrappers.v1beta1.workload.codeflare.dev"
RUNS, WAITS, DONE = "raycluster-glue", "raycluster-glue-1", "done"
STATUSES: Final[dict[str, Json]] = {
    RUNS: RECORDED_BY_MCAD[RUNS],
    WAITS: RECORDED_BY_MCAD[WAITS],
    DONE: COMPLETED_BY_MCAD,
}
COMPONENTS: Final[Json] = {
    "apiVersion": "workload.codeflare.dev/v1beta1",
    "kind": "AppWrapper",
    "metadata": {"name": "components"},
    "spec": {
        "suspend": True,
        "components": [
            {"template": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "components"}}}
        ],
    },
}
"""What MCAD's definition refuses: it requires `resources`, and knows neither field."""


def definition(group: str = "workload.codeflare.dev") -> str:
    """MCAD's definition of AppWrappers in a group, as a file."""
    crd = yaml.safe_load((Path(__file__).parent / "mcad_appwrappers.yaml").read_text())
    crd["metadata"]["name"] = f"appwrappers.{group}"
    crd["spec"]["group"] = group
    return json.dumps(crd)


def example(name: str) -> Json:
    """An AppWrapper as a user of MCAD submitted it; `done` is one that was to be requeued after 100 s."""
    found: Json = yaml.safe_load(
        (CHECKOUT / "examples" / f"aw-{RUNS if name == DONE else name}.yaml").read_text()
    )
    if name == DONE:
        found["metadata"]["name"] = DONE
        found["spec"]["schedulingSpec"] = {"requeuing": {"timeInSeconds": 100}}
    return found


def left_by_mcad(kubectl: Kubectl) -> dict[str, Json]:
    """The AppWrappers as MCAD's definition stores them, with MCAD's status; and the objects of the one that runs."""
    stored = {}
    for name, status in STATUSES.items():
        kubectl("create", "-f", "-", stdin=json.dumps(example(name)))
        patch = json.dumps({"status": status})
        kubectl("patch", APPWRAPPERS, name, "--subresource=status", "--type=merge", "--patch", patch)
        stored[name] = kubectl.get(APPWRAPPERS, name)
    for each in stored[RUNS]["spec"]["resources"]["GenericItems"]:
        made = as_mcad_created(each["generictemplate"], RUNS, stored[RUNS]["metadata"]["uid"])
        kubectl("create", "-f", "-", stdin=json.dumps(made))
    return stored


def uids(kubectl: Kubectl, kind: str) -> set[str]:
    return {each["metadata"]["uid"] for each in kubectl.get(kind)["items"]}


def test_definitions_take_the_place_of_mcads_and_its_gangs_are_adopted(
    supervisor: Supervisor, fresh: Plane, kubectl: Kubectl, empty_url: str
) -> None:
    kubectl("apply", "-f", "-", stdin=definition())
    kubectl("apply", "-f", "-", stdin=definition("mcad.ibm.com"))
    for group in ("workload.codeflare.dev", "mcad.ibm.com"):
        kubectl("wait", "--for=condition=Established", f"crd/appwrappers.{group}", "--timeout=60s")
    stored = left_by_mcad(kubectl)
    kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
    running, pods = uids(kubectl, "raycluster"), uids(kubectl, "pod")

    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHECKOUT / "crds"))

    stored[DONE]["spec"]["schedulingSpec"]["requeuing"]["pauseTimeInSeconds"] = (
        0  # a default that MCAD got later
    )
    assert {name: kubectl.get(APPWRAPPERS, name) for name in stored} == stored
    kubectl(
        "wait", "--for=condition=NamesAccepted=False", "crd/mcadappwrappers.mcad.ibm.com", "--timeout=60s"
    )
    kubectl("delete", "crd", "appwrappers.mcad.ibm.com", "--timeout=60s")
    kubectl("wait", "--for=condition=Established", "crd/mcadappwrappers.mcad.ibm.com", "--timeout=60s")
    apply(kubectl)
    kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(COMPONENTS))

    write_secret(kubectl, empty_url)
    pod = Pod(supervisor, fresh, kubectl)
    migration = pod.run("migrate")
    assert migration.wait(60) == 0, migration.log.read_text()
    dispatcher = pod.run("dispatcher")
    kubectl("wait", f"aw/{RUNS}", "--for=jsonpath={.status.queuejobstate}=Running", "--timeout=60s")
    kubectl("wait", f"aw/{WAITS}", "--for=jsonpath={.status.queuejobstate}=Backoff", "--timeout=60s")
    assert (uids(kubectl, "raycluster"), uids(kubectl, "pod")) == (running, pods)

    kubectl("delete", "aw", RUNS, "--timeout=60s")
    kubectl("wait", f"aw/{WAITS}", "--for=condition=Running", "--timeout=60s")
    assert kubectl.get("aw", DONE)["status"]["queuejobstate"] == "Completed"
    dispatcher.stop()
    assert dispatcher.exit_code == 0
    assert '"event": "adopted"' in dispatcher.log.read_text()
