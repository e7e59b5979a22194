"""Jobs of Ray clusters in which no Ray runs, as values: how far each is, and how Ray's dashboard describes it.

The job of a RayJob that has a pod or a container for its submission is as far as that is, because `ray job submit` ends
with its job, in the same way. Another job (`HTTPMode`, `InteractiveMode`) takes its time from the annotations of the
RayJob. The words and fields are those of Ray 2.52.

Source: https://docs.ray.io/en/releases-2.52.0/cluster/running-applications/job-submission/api.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from testbed.operated import RUN_FOR

Json = dict[str, Any]

LIFE: Final = "testbed.dispatcher.codeflare.dev"
FAIL_AFTER: Final = f"{LIFE}/fail-after"
FOREVER: Final = "forever"
SUBMITTER: Final = "ray-job-submitter"
"""The container in a head pod that submits the job in `SidecarMode`."""
PENDING_FOR: Final = timedelta(milliseconds=200)
UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
ERROR_EXIT_CODE: Final = 1


class Submission(StrEnum):
    """Who submits the job of a RayJob (`spec.submissionMode`): a Job, the head pod, the operator, or a user."""

    BY_JOB = "K8sJobMode"
    BY_SIDECAR = "SidecarMode"
    BY_OPERATOR = "HTTPMode"
    BY_USER = "InteractiveMode"


class JobStatus(StrEnum):
    """The states of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


ENDED: Final = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)
MESSAGES: Final = {
    JobStatus.PENDING: "Job has not started yet.",
    JobStatus.RUNNING: "Job is currently running.",
    JobStatus.SUCCEEDED: "Job finished successfully.",
    JobStatus.FAILED: "Job entrypoint command failed with exit code 1.",
    JobStatus.STOPPED: "Job was intentionally stopped.",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, and when it began and ended."""

    status: JobStatus
    began: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """The time that a job takes, None without an end, and whether it fails then."""

    lasts: timedelta | None
    fails: bool = False


def life_of(ray_job: Json, otherwise: timedelta) -> Life:
    """The life of a RayJob's job by the RayJob's annotations; a job without them succeeds after `otherwise`."""
    annotations = ray_job["metadata"].get("annotations") or {}
    if (fail_after := annotations.get(FAIL_AFTER)) is not None:
        return Life(seconds_of(fail_after), fails=True)
    run_for = annotations.get(RUN_FOR)
    if run_for == FOREVER:
        return Life(None)
    return Life(otherwise if run_for is None else seconds_of(run_for))


def seconds_of(duration: str) -> timedelta:
    """A duration as Go writes it: `500ms`, `3s`, `1m30s`. Raises `ValueError`."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|m|s)", duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(f"{duration!r} is not a duration like 1m30s")
    return timedelta(seconds=sum(float(number) * UNITS[unit] for number, unit in parts))


def progress_by_time(life: Life, submitted: datetime, now: datetime) -> Progress:
    """How far a job is that was submitted at this time."""
    began = submitted + PENDING_FOR
    if now < began:
        return Progress(JobStatus.PENDING)
    if life.lasts is None or now < began + life.lasts:
        return Progress(JobStatus.RUNNING, began)
    return Progress(JobStatus.FAILED if life.fails else JobStatus.SUCCEEDED, began, began + life.lasts)


def progress_by_pods(pods: Sequence[Json]) -> Progress | None:
    """How far the job is that the first of these pods to run has submitted; None while none of them has run.

    A later pod follows the job of the first one: a failed submission is repeated under the same id.
    """
    found = [_progress_of(pod["status"].get("containerStatuses") or ()) for pod in pods if "status" in pod]
    begun = [each for each in found if each is not None]
    ended = [each for each in begun if each.status in ENDED]
    return next(iter(ended or begun), None)


def progress_by_container(pods: Sequence[Json]) -> Progress | None:
    """How far the job is that the submitting container of a head pod has submitted; None while it has not run."""
    statuses = [
        each
        for pod in pods
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
        if each["name"] == SUBMITTER
    ]
    return _progress_of(statuses)


def _progress_of(statuses: Sequence[Mapping[str, Any]]) -> Progress | None:
    state = (statuses[0].get("state") or {}) if statuses else {}
    if (terminated := state.get("terminated")) is not None:
        began, ended = _time(terminated.get("startedAt")), _time(terminated.get("finishedAt"))
        succeeded = terminated["exitCode"] == 0
        return Progress(JobStatus.SUCCEEDED if succeeded else JobStatus.FAILED, began, ended)
    if (running := state.get("running")) is not None:
        return Progress(JobStatus.RUNNING, _time(running.get("startedAt")))
    return None


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def details_of(submission_id: str, entrypoint: str, progress: Progress) -> Json:
    """A job as Ray's `JobDetails`."""
    exit_codes = {JobStatus.SUCCEEDED: 0, JobStatus.FAILED: ERROR_EXIT_CODE}
    return {
        "type": "SUBMISSION",
        "job_id": None,
        "submission_id": submission_id,
        "driver_info": None,
        "status": progress.status.value,
        "entrypoint": entrypoint,
        "message": MESSAGES[progress.status],
        "error_type": None,
        "start_time": _milliseconds(progress.began),
        "end_time": _milliseconds(progress.ended),
        "metadata": {},
        "runtime_env": {},
        "driver_agent_http_address": None,
        "driver_node_id": None,
        "driver_exit_code": exit_codes.get(progress.status),
    }


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def is_whole(ray_cluster: Json) -> bool:
    """True if all workers of a RayCluster are ready, by its status."""
    status = ray_cluster.get("status") or {}
    return int(status.get("readyWorkerReplicas", 0)) >= int(status.get("desiredWorkerReplicas", 0))


def applications_of(config: Mapping[str, Any], deployed: datetime, runs: bool) -> dict[str, Json]:
    """The applications of a Serve configuration as Ray's `ApplicationDetails`.

    All of them are deployed until they run, which they do while the Ray cluster has room for their replicas.
    """
    return {
        each["name"]: {
            "name": each["name"],
            "route_prefix": each.get("route_prefix", "/"),
            "docs_path": None,
            "status": "RUNNING" if runs else "DEPLOYING",
            "message": "",
            "last_deployed_time_s": deployed.timestamp(),
            "deployed_app_config": dict(each),
            "source": "declarative",
            "deployments": {
                deployment["name"]: {
                    "name": deployment["name"],
                    "status": "HEALTHY" if runs else "UPDATING",
                    "status_trigger": "CONFIG_UPDATE_COMPLETED",
                    "message": "",
                    "deployment_config": dict(deployment),
                    "target_num_replicas": 1,
                    "replicas": [],
                }
                for deployment in each.get("deployments") or ()
            },
        }
        for each in config.get("applications") or ()
    }
