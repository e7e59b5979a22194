"""Ray's dashboards as KubeRay's operator sees them, for Ray clusters in which no Ray runs.

The operator speaks HTTP to the head service of a Ray cluster, and to the Serve proxy of its head pod. No container runs
here, so the far side of that wire is this server, and nothing else is played: the operator's process has it as
`HTTP_PROXY`, so that every such request arrives here with the host that it was for. `testbed.ray_jobs` decides how far
a job is, from the RayJob and its pods, which are read from the API server at each request.

Written from the REST API that Ray 2.52 documents: of jobs, and of Serve applications. Not included: jobs of drivers
that connect by themselves, logs, and the state of nodes and actors.

Source: https://docs.ray.io/en/releases-2.52.0/cluster/running-applications/job-submission/api.html
Source: https://docs.ray.io/en/releases-2.52.0/serve/api/index.html#serve-rest-api
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import re
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from testbed.ray_jobs import (
    ENDED,
    JobStatus,
    Progress,
    Submission,
    applications_of,
    details_of,
    is_whole,
    life_of,
    progress_by_container,
    progress_by_pods,
    progress_by_time,
)
from testbed.stand_in import UNREACHABLE, Api, RefusedError

Json = dict[str, Any]

RAY_VERSION: Final = "2.52.0"
HEAD_SUFFIX: Final = "-head-svc"
HEAD_SERVICE: Final = re.compile(r"(?P<service>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc(\.|:|$)")

log = logging.getLogger("ray-dashboard")


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a Ray cluster, by the service that a request was for."""

    namespace: str
    service: str


def head_of(host: str) -> Head | None:
    """The head that a host of a request names; None for another host, as that of a pod."""
    found = HEAD_SERVICE.match(host)
    return None if found is None else Head(found["namespace"], found["service"])


class Dashboards:
    """The dashboards of all Ray clusters of one API server. Jobs and applications of a gone cluster are kept."""

    def __init__(self, api: Api, work: timedelta, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._work = work
        self._now = clock
        self._submitted: dict[tuple[str, str], datetime] = {}
        self._stopped: dict[tuple[str, str], Progress] = {}
        self._served: dict[Head, tuple[Json, datetime]] = {}

    def application(self) -> web.Application:
        """The server's routes."""
        application = web.Application(middlewares=[unavailable])
        application.add_routes(
            [
                web.get("/api/version", self._version),
                web.get("/api/jobs/", self._list_jobs),
                web.post("/api/jobs/", self._submit_job),
                web.get("/api/jobs/{id}", self._get_job),
                web.delete("/api/jobs/{id}", self._delete_job),
                web.get("/api/jobs/{id}/logs", self._get_logs),
                web.post("/api/jobs/{id}/stop", self._stop_job),
                web.get("/api/serve/applications/", self._get_applications),
                web.put("/api/serve/applications/", self._put_applications),
                web.get("/-/healthz", self._get_health),
            ]
        )
        return application

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": RAY_VERSION, "ray_commit": ""})

    async def _submit_job(self, request: web.Request) -> web.Response:
        head, body = _head(request), await request.json()
        submission = str(body.get("submission_id") or f"raysubmit_{len(self._submitted)}")
        if (head.namespace, submission) in self._submitted:
            message = (
                f"Job with submission_id {submission} already exists. Please use a different submission_id."
            )
            return web.Response(status=500, text=message)
        self._submitted[head.namespace, submission] = self._now()
        log.info("%s: submitted %s", head.service, submission)
        return web.json_response({"job_id": submission, "submission_id": submission})

    async def _list_jobs(self, request: web.Request) -> web.Response:
        head = _head(request)
        found = [
            details
            for ray_job in await self._ray_jobs(head.namespace)
            if head.service.startswith(str(_status(ray_job).get("rayClusterName")))
            and (details := await self._details(ray_job)) is not None
        ]
        return web.json_response(found)

    async def _get_job(self, request: web.Request) -> web.Response:
        head, submission = _head(request), request.match_info["id"]
        for ray_job in await self._ray_jobs(head.namespace):
            if (
                _status(ray_job).get("jobId") == submission
                and (details := await self._details(ray_job)) is not None
            ):
                return web.json_response(details)
        return _no_job(submission)

    async def _stop_job(self, request: web.Request) -> web.Response:
        head, submission = _head(request), request.match_info["id"]
        for ray_job in await self._ray_jobs(head.namespace):
            if _status(ray_job).get("jobId") == submission:
                progress = await self._progress(ray_job)
                if progress is None or progress.status in ENDED:
                    return web.json_response({"stopped": False})
                stopped = Progress(JobStatus.STOPPED, progress.began, self._now())
                self._stopped[head.namespace, submission] = stopped
                return web.json_response({"stopped": True})
        return _no_job(submission)

    async def _delete_job(self, request: web.Request) -> web.Response:
        self._submitted.pop((_head(request).namespace, request.match_info["id"]), None)
        return web.json_response({"deleted": True})

    async def _get_logs(self, _: web.Request) -> web.Response:
        return web.json_response({"logs": ""})

    async def _put_applications(self, request: web.Request) -> web.Response:
        head, config = _head(request), await request.json()
        self._served[head] = config, self._now()
        log.info("%s: new Serve configuration", head.service)
        return web.Response()

    async def _get_applications(self, request: web.Request) -> web.Response:
        head = _head(request)
        config, deployed = self._served.get(head, ({}, self._now()))
        applications = applications_of(config, deployed, await self._has_room(head))
        return web.json_response({"deploy_mode": "MULTI_APP", "proxies": {}, "applications": applications})

    async def _get_health(self, _: web.Request) -> web.Response:
        return web.Response(text="success")

    async def _details(self, ray_job: Json) -> Json | None:
        progress = await self._progress(ray_job)
        if progress is None:
            return None
        return details_of(_status(ray_job)["jobId"], ray_job["spec"].get("entrypoint", ""), progress)

    async def _progress(self, ray_job: Json) -> Progress | None:
        """How far the job of a RayJob is; None before its submission."""
        namespace, name = ray_job["metadata"]["namespace"], ray_job["metadata"]["name"]
        key = (namespace, str(_status(ray_job)["jobId"]))
        if key in self._stopped:
            return self._stopped[key]
        match ray_job["spec"].get("submissionMode", Submission.BY_JOB):
            case Submission.BY_JOB:
                return progress_by_pods(await self._pods(namespace, f"batch.kubernetes.io/job-name={name}"))
            case Submission.BY_SIDECAR:
                cluster = _status(ray_job).get("rayClusterName")
                heads = f"ray.io/cluster={cluster},ray.io/node-type=head"
                return progress_by_container(await self._pods(namespace, heads))
            case Submission.BY_USER:
                # Its user has submitted the job before the RayJob had its id.
                submitted = self._submitted.setdefault(key, self._now())
            case _ if key not in self._submitted:
                return None
            case _:
                submitted = self._submitted[key]
        return progress_by_time(life_of(ray_job, self._work), submitted, self._now())

    async def _has_room(self, head: Head) -> bool:
        """True if all workers of the Ray cluster are there: replicas need them."""
        name = head.service.removesuffix(HEAD_SUFFIX)
        path = f"/apis/ray.io/v1/namespaces/{head.namespace}/rayclusters/{name}"
        return is_whole(await self._api.request("GET", path))

    async def _ray_jobs(self, namespace: str) -> list[Json]:
        found = await self._api.request("GET", f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs")
        items: list[Json] = found["items"]
        return items

    async def _pods(self, namespace: str, selector: str) -> list[Json]:
        """The pods with these labels, the oldest first."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        found = await self._api.request("GET", path, query={"labelSelector": selector})
        return sorted(found["items"], key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def _head(request: web.Request) -> Head:
    head = head_of(request.headers.get("Host", ""))
    if head is None:
        raise web.HTTPBadGateway(text=f"{request.headers.get('Host')} is no head service of a Ray cluster")
    return head


def _status(ray_job: Json) -> Json:
    return ray_job.get("status") or {}


def _no_job(submission: str) -> web.Response:
    return web.Response(status=404, text=f"Job {submission} does not exist")


@web.middleware
async def unavailable(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    """Answers 503 where the API server cannot be asked: then Ray's dashboard does not answer, either."""
    try:
        answer: web.StreamResponse = await handler(request)
    except (RefusedError, *UNREACHABLE) as error:
        log.info("%s: %r", request.path, error)
        return web.Response(status=503, text=str(error))
    return answer


@contextlib.asynccontextmanager
async def serving(dashboards: Dashboards, port: int) -> AsyncIterator[int]:
    """Serves on a port of the loopback address, 0 for any, and yields the port."""
    runner = web.AppRunner(dashboards.application(), access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def run(kubeconfig: Path, port: int, work: timedelta) -> None:
    """Serves until SIGTERM or SIGINT."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with Api.connect(kubeconfig) as api:
        dashboards = Dashboards(api, work, lambda: datetime.now(UTC))
        async with serving(dashboards, port):
            await told.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the server until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.ray_dashboard",
        description="Answers KubeRay's operator as the dashboards of Ray clusters would, in which no Ray runs.",
    )
    parser.add_argument("--kubeconfig", type=Path, required=True, help="how to reach the API server")
    parser.add_argument("--port", type=int, default=0, help="the port on 127.0.0.1 (default: any)")
    parser.add_argument(
        "--work-seconds", type=float, default=1.0, metavar="N", help="time of a job that does not say it (1)"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    # The operator also asks a head that has no address yet, as http://:8000, which is no URL.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    asyncio.run(run(options.kubeconfig, options.port, timedelta(seconds=options.work_seconds)))


if __name__ == "__main__":
    main()
