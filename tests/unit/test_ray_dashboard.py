"""The server that answers KubeRay's operator as Ray's dashboards would: how far jobs are, and what is served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from testbed.operated import RUN_FOR
from testbed.ray_dashboard import Dashboards, Head, head_of, serving
from testbed.ray_jobs import (
    FAIL_AFTER,
    SUBMITTER,
    JobStatus,
    Life,
    Progress,
    is_whole,
    life_of,
    progress_by_container,
    progress_by_pods,
    progress_by_time,
    seconds_of,
)
from testbed.stand_in import Api
from tests.fakes import FakeApiServer, answer

Json = dict[str, Any]

SUBMITTED = datetime(2026, 11, 20, 9, tzinfo=UTC)
BEGAN = SUBMITTED + timedelta(milliseconds=200)
JOB = "train-x7k2p"
HOST = "train-abcde-head-svc.team-a.svc.cluster.local:8265"
RAY_JOBS = "/apis/ray.io/v1/namespaces/team-a/rayjobs"
RAY_CLUSTER = "/apis/ray.io/v1/namespaces/team-a/rayclusters/train-abcde"
PODS = "/api/v1/namespaces/team-a/pods"
CONFIG = {"applications": [{"name": "llm", "deployments": [{"name": "Model"}]}]}


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def rayjob(mode: str = "HTTPMode", **annotations: str) -> Json:
    return {
        "metadata": {"name": "train", "namespace": "team-a", "annotations": annotations},
        "spec": {"entrypoint": "python train.py", "submissionMode": mode},
        "status": {"jobId": JOB, "rayClusterName": "train-abcde"},
    }


def pod(name: str = "submitter", container: str = "main", **state: Json) -> Json:
    """A pod of one container in this state."""
    return {
        "metadata": {"name": name, "creationTimestamp": "2026-11-20T09:00:00Z"},
        "status": {"containerStatuses": [{"name": container, "state": state}]},
    }


def running(container: str = "main") -> Json:
    return pod(container=container, running={"startedAt": "2026-11-20T09:00:00Z"})


def ended(exit_code: int, container: str = "main") -> Json:
    times = {"startedAt": "2026-11-20T09:00:00Z", "finishedAt": "2026-11-20T09:00:05Z"}
    return pod(container=container, terminated={"exitCode": exit_code, **times})


def progress(status: JobStatus, end: bool = True) -> Progress:
    """How far a job is that began when it was submitted and lasted five seconds, if it has ended."""
    return Progress(status, SUBMITTED, SUBMITTED + seconds(5) if end else None)


# --- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [("500ms", 0.5), ("3s", 3), ("1m30s", 90), ("1.5h", 5400), ("0s", 0)],
)
def test_duration_is_read_as_go_writes_it(written: str, expected: float) -> None:
    assert seconds_of(written) == seconds(expected)


@pytest.mark.parametrize("written", ["", "3", "s", "3 s", "1d", "-3s"])
def test_another_word_is_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration like 1m30s"):
        seconds_of(written)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, Life(seconds(7)), id="says-nothing"),
        pytest.param({RUN_FOR: "3s"}, Life(seconds(3)), id="runs-for"),
        pytest.param({RUN_FOR: "forever"}, Life(None), id="runs-for-ever"),
        pytest.param({RUN_FOR: "3s", FAIL_AFTER: "1s"}, Life(seconds(1), fails=True), id="fails"),
    ],
)
def test_life_of_a_job_is_by_the_annotations_of_its_rayjob(
    annotations: dict[str, str], expected: Life
) -> None:
    assert life_of(rayjob(**annotations), otherwise=seconds(7)) == expected


@pytest.mark.parametrize(
    ("life", "after", "expected"),
    [
        pytest.param(Life(seconds(3)), 0.1, Progress(JobStatus.PENDING), id="pending"),
        pytest.param(Life(seconds(3)), 3.1, Progress(JobStatus.RUNNING, BEGAN), id="running"),
        pytest.param(
            Life(seconds(3)), 3.2, Progress(JobStatus.SUCCEEDED, BEGAN, BEGAN + seconds(3)), id="succeeded"
        ),
        pytest.param(
            Life(seconds(3), fails=True),
            60,
            Progress(JobStatus.FAILED, BEGAN, BEGAN + seconds(3)),
            id="failed",
        ),
        pytest.param(Life(None), 1e6, Progress(JobStatus.RUNNING, BEGAN), id="endless"),
    ],
)
def test_job_goes_through_its_states_in_time(life: Life, after: float, expected: Progress) -> None:
    assert progress_by_time(life, SUBMITTED, SUBMITTED + seconds(after)) == expected


WAITING = pod(waiting={"reason": "ContainerCreating"})


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], None, id="no-pod"),
        pytest.param([{"metadata": {"name": "a"}}], None, id="pod-without-status"),
        pytest.param([WAITING], None, id="pod-starts"),
        pytest.param([running()], progress(JobStatus.RUNNING, end=False), id="runs"),
        pytest.param([ended(0)], progress(JobStatus.SUCCEEDED), id="succeeded"),
        pytest.param([ended(1)], progress(JobStatus.FAILED), id="failed"),
        pytest.param([ended(1), running()], progress(JobStatus.FAILED), id="failed-and-followed-again"),
        pytest.param([ended(1), ended(0)], progress(JobStatus.FAILED), id="the-first-end-is-the-jobs"),
    ],
)
def test_job_is_as_far_as_the_pod_that_submits_it(pods: list[Json], expected: Progress | None) -> None:
    assert progress_by_pods(pods) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], None, id="no-head"),
        pytest.param([running("ray-head")], None, id="no-submitter"),
        pytest.param([running(SUBMITTER)], progress(JobStatus.RUNNING, end=False), id="runs"),
        pytest.param([ended(0, SUBMITTER)], progress(JobStatus.SUCCEEDED), id="succeeded"),
        pytest.param([ended(3, SUBMITTER)], progress(JobStatus.FAILED), id="failed"),
    ],
)
def test_job_is_as_far_as_the_container_of_the_head_that_submits_it(
    pods: list[Json], expected: Progress | None
) -> None:
    assert progress_by_container(pods) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, True),
        ({"desiredWorkerReplicas": 2, "readyWorkerReplicas": 2}, True),
        ({"desiredWorkerReplicas": 2}, False),
        ({"desiredWorkerReplicas": 2, "readyWorkerReplicas": 1}, False),
    ],
)
def test_ray_cluster_is_whole_with_all_workers(status: Json, expected: bool) -> None:
    assert is_whole({"status": status}) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (HOST, Head("team-a", "train-abcde-head-svc")),
        ("a-head-svc.b.svc", Head("b", "a-head-svc")),
        ("10.1.0.7:8000", None),
        ("localhost:8265", None),
        ("", None),
    ],
)
def test_host_of_a_request_names_a_head(host: str, expected: Head | None) -> None:
    assert head_of(host) == expected


# --- the server --------------------------------------------------------------------------------------


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = SUBMITTED

    def __call__(self) -> datetime:
        return self.now


class Operator:
    """KubeRay's operator, as far as it asks dashboards: by a proxy, for the host of a head service."""

    def __init__(self, session: aiohttp.ClientSession, proxy: str) -> None:
        self._session = session
        self._proxy = proxy

    async def ask(
        self, method: str, path: str, body: Json | None = None, host: str = HOST
    ) -> tuple[int, Any]:
        """The status, and the JSON of the answer, or its text."""
        async with self._session.request(
            method, f"http://{host}{path}", json=body, proxy=self._proxy
        ) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def job(self) -> tuple[int, str]:
        """The status of the answer about the job, and the state of the job."""
        status, found = await self.ask("GET", f"/api/jobs/{JOB}")
        return status, found["status"] if status == 200 else found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def kubernetes() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def operator(kubernetes: FakeApiServer, clock: Clock) -> AsyncIterator[Operator]:
    async with aiohttp.ClientSession() as session:
        dashboards = Dashboards(Api(kubernetes.url, "", session), seconds(7), clock)
        async with serving(dashboards, 0) as port:
            yield Operator(session, f"http://127.0.0.1:{port}")


async def test_job_that_the_operator_submits_runs_for_its_time(
    operator: Operator, kubernetes: FakeApiServer, clock: Clock
) -> None:
    kubernetes.on("GET", RAY_JOBS, answer({"items": [rayjob(**{FAIL_AFTER: "3s"})]}))
    submission = {"entrypoint": "python train.py", "submission_id": JOB}

    before = await operator.job()
    submitted = await operator.ask("POST", "/api/jobs/", submission)
    states = []
    for after in (0, 1, 4):
        clock.now = SUBMITTED + seconds(after)
        states.append(await operator.job())
    _, details = await operator.ask("GET", f"/api/jobs/{JOB}")

    assert before == (404, f"Job {JOB} does not exist")
    assert submitted == (200, {"job_id": JOB, "submission_id": JOB})
    assert states == [(200, "PENDING"), (200, "RUNNING"), (200, "FAILED")]
    assert (details["submission_id"], details["entrypoint"]) == (JOB, "python train.py")
    assert details["end_time"] - details["start_time"] == 3000
    assert details["message"] == "Job entrypoint command failed with exit code 1."
    assert await operator.ask("GET", "/api/jobs/") == (200, [details])


async def test_submission_id_is_used_once(operator: Operator) -> None:
    submission = {"entrypoint": "python train.py", "submission_id": JOB}
    await operator.ask("POST", "/api/jobs/", submission)

    status, text = await operator.ask("POST", "/api/jobs/", submission)

    assert (status, "Please use a different submission_id." in text) == (500, True)


@pytest.mark.parametrize(
    ("mode", "container", "selector"),
    [
        ("K8sJobMode", "main", "batch.kubernetes.io/job-name=train"),
        ("SidecarMode", SUBMITTER, "ray.io/cluster=train-abcde,ray.io/node-type=head"),
    ],
)
async def test_job_that_a_pod_submits_goes_as_the_pod_goes(
    operator: Operator, kubernetes: FakeApiServer, mode: str, container: str, selector: str
) -> None:
    kubernetes.on("GET", RAY_JOBS, answer({"items": [rayjob(mode)]}))
    pods: tuple[list[Json], ...] = ([], [running(container)], [ended(0, container)])
    kubernetes.on("GET", PODS, *(answer({"items": each}) for each in pods))

    states = [await operator.job() for _ in pods]

    assert states == [(404, f"Job {JOB} does not exist"), (200, "RUNNING"), (200, "SUCCEEDED")]
    assert {each.query["labelSelector"] for each in kubernetes.requests("GET", PODS)} == {selector}


async def test_stopped_job_stays_stopped_and_an_ended_one_cannot_be_stopped(
    operator: Operator, kubernetes: FakeApiServer
) -> None:
    kubernetes.on("GET", RAY_JOBS, answer({"items": [rayjob("K8sJobMode")]}))
    kubernetes.on("GET", PODS, answer({"items": [running()]}))

    stopped = await operator.ask("POST", f"/api/jobs/{JOB}/stop")
    state = await operator.job()
    again = await operator.ask("POST", f"/api/jobs/{JOB}/stop")

    assert (stopped, state, again) == (
        (200, {"stopped": True}),
        (200, "STOPPED"),
        (200, {"stopped": False}),
    )
    assert await operator.ask("POST", "/api/jobs/other/stop") == (404, "Job other does not exist")


async def test_applications_run_once_the_ray_cluster_has_all_workers(
    operator: Operator, kubernetes: FakeApiServer
) -> None:
    lacking = {"status": {"desiredWorkerReplicas": 1}}
    kubernetes.on("GET", RAY_CLUSTER, answer(lacking), answer(lacking), answer({"status": {}}))
    path = "/api/serve/applications/"

    _, before = await operator.ask("GET", f"{path}?api_type=declarative")
    status, _ = await operator.ask("PUT", path, CONFIG)
    _, deploying = await operator.ask("GET", f"{path}?api_type=declarative")
    _, running = await operator.ask("GET", f"{path}?api_type=declarative")

    assert (before["applications"], status) == ({}, 200)
    found = [each["applications"]["llm"] for each in (deploying, running)]
    assert [(each["status"], each["deployments"]["Model"]["status"]) for each in found] == [
        ("DEPLOYING", "UPDATING"),
        ("RUNNING", "HEALTHY"),
    ]


async def test_serve_proxy_of_every_pod_is_healthy(operator: Operator) -> None:
    assert await operator.ask("GET", "/-/healthz", host="10.1.0.7:8000") == (200, "success")


async def test_host_without_a_dashboard_and_an_api_server_that_fails_are_told(
    operator: Operator, kubernetes: FakeApiServer
) -> None:
    status, text = await operator.ask("GET", "/api/jobs/", host="10.1.0.7:8265")
    assert (status, text) == (502, "10.1.0.7:8265 is no head service of a Ray cluster")

    status, text = await operator.ask("GET", "/api/jobs/")
    assert (status, text) == (503, "404: 404 page not found\n")
