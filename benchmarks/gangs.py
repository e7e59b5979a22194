"""The submitted gangs: the gang of the blog under many names; and the objects that a bare client writes for it.

The bare client writes the same objects as the dispatcher: RayCluster and statuses come from the dispatcher's own core
and are made before the clock starts, so that the client only writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from dispatcher.api.annotations import ADMISSION_GRACE
from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import APPWRAPPER_VERSION, WORKLOAD_GROUP
from dispatcher.core.kinds.demand import charge_of
from dispatcher.core.kinds.manifest import Owner, build
from dispatcher.core.lifecycle import first_changes, queue_changes, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.status.conditions import project

Json = dict[str, Any]

CHECKOUT: Final = Path(__file__).parents[1]
EXAMPLE: Final = CHECKOUT / "examples" / "aw-raycluster-glue.yaml"
EXAMPLE_NAME: Final = "raycluster-glue"
NAMESPACE: Final = "benchmark"
APPWRAPPERS: Final = f"/apis/{WORKLOAD_GROUP}/{APPWRAPPER_VERSION}/namespaces/{NAMESPACE}/appwrappers"
RAYCLUSTERS: Final = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"

PODS: Final = 2
CPU: Final = 3
MEMORY_GI: Final = 15
GPU: Final = 1
"""The requests of a pod of the example: 16G are just under 15Gi."""

_SOME_UID: Final = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Gang:
    """One AppWrapper as a user submits it, and its RayCluster as the dispatcher creates it."""

    name: str
    appwrapper: Json
    raycluster_for_some_uid: bytes

    def raycluster(self, uid: str) -> Json:
        """The RayCluster, owned by the AppWrapper of that uid."""
        made: Json = orjson.loads(self.raycluster_for_some_uid.replace(_SOME_UID.encode(), uid.encode()))
        return made


def make_gangs(prefix: str, count: int) -> list[Gang]:
    """Gangs that differ only by name."""
    text = EXAMPLE.read_text()
    example = yaml.safe_load(text)
    return [_gang(example, f"{prefix}-{number:05d}") for number in range(count)]


def unfittable(name: str, cpu: str = "100000") -> Json:
    """One pod, by default with the cpus of a thousand nodes: more than there are."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name},
        "spec": {"resources": {"GenericItems": [{"generictemplate": job}]}},
    }


def statuses() -> tuple[Json, Json]:
    """The status of an AppWrapper at the head of the queue, and the status after its dispatch."""
    now = datetime.now(UTC)
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    submitted = first_changes.submit(
        _submission(now), charge_of(parse_spec(spec, namespace=NAMESPACE)).gang, now
    ).after
    decided = queue_changes.dispatch(submitted, "hub", now).after
    return project(decided), project(run_changes.created(decided, (), now).after)


def is_dispatched(appwrapper: Mapping[str, Any]) -> bool:
    """True if its condition Dispatched is True."""
    conditions: Sequence[Mapping[str, Any]] = (appwrapper.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Dispatched" and each["status"] == "True" for each in conditions)


def lacks_pods(appwrapper: Mapping[str, Any]) -> bool:
    """True if the dispatcher has noted that it lacks pods; nobody makes any here."""
    return "unhealthy" in (appwrapper.get("status") or {})


def _gang(example: Json, name: str) -> Gang:
    appwrapper: Json = _renamed(example, name)
    appwrapper["metadata"]["namespace"] = NAMESPACE
    # No operator makes pods here, and by default a gang without pods is requeued after a minute. That it lacks them
    # is noted after half a minute all the same, and whoever counts writes leaves the note out.
    appwrapper["metadata"]["annotations"] = {ADMISSION_GRACE: "1h"}
    wrapped = parse_spec(appwrapper["spec"], namespace=NAMESPACE).wrapped[0]
    owner = Owner(_SOME_UID, WORKLOAD_GROUP, APPWRAPPER_VERSION, NAMESPACE, name, 1, _SOME_UID[::-1])
    return Gang(name, appwrapper, orjson.dumps(build(wrapped, owner)))


def _renamed(value: Any, name: str) -> Any:  # noqa: ANN401  # any JSON
    """A copy of `value` in which `name` replaces the name of the example."""
    if isinstance(value, dict):
        return {key: _renamed(entry, name) for key, entry in value.items()}
    if isinstance(value, list):
        return [_renamed(entry, name) for entry in value]
    return name if value == EXAMPLE_NAME else value


def _submission(now: datetime) -> Submission:
    return Submission(_SOME_UID, WORKLOAD_GROUP, NAMESPACE, EXAMPLE_NAME, now, b"{}", "", priority=9)
