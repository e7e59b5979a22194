"""A stand-in for an autoscaler that provides nodes on request, as GKE's queued provisioning does.

It accepts a ProvisioningRequest with an estimated time, then adds nodes of one shape, enough for all pods of the
request, and sets the condition Provisioned once they are usable. Once a request is gone, its nodes are removed as soon
as they are empty. The nodes exist only in the API (`testbed.nodes`). Not included: other pools, node selectors and
tolerations of the templates, and growth for Pending pods. Free room on nodes of other requests is not used.

A request fails, or loses its capacity, on demand:

- Parameter `testbed-fail-first: "2"`: the requests of the attempts 1 and 2 fail.
- Annotation `testbed.dispatcher.codeflare.dev/revoke: MESSAGE` on a provisioned request: its capacity is revoked. The
  nodes stay until their pods are gone.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from dispatcher.core.kinds.pods.pod_requests import pod_requests
from dispatcher.core.model.quantity import in_words, resource_amounts
from dispatcher.core.model.resources import Resources
from testbed.nodes import NODES, Shape, is_usable, make_node
from testbed.operated import has_condition
from testbed.stand_in import RefusedError, StandIn, View, Watched, run_until_told, uid_of

log = logging.getLogger("autoscaler-stand-in")

Json = dict[str, Any]

REQUESTS: Final = "/apis/autoscaling.x-k8s.io/v1/provisioningrequests"
PODS: Final = "/api/v1/pods"
REQUEST_LABEL: Final = "testbed.dispatcher.codeflare.dev/provisioned-for"
"""On a node: the uid of its request."""
POOL_LABEL: Final = "cloud.google.com/gke-nodepool"
REVOKE: Final = "testbed.dispatcher.codeflare.dev/revoke"
FAIL_FIRST: Final = "testbed-fail-first"
TAINTS: Final = ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},)
"""Pods that need no GPU stay away, as on GKE."""
OUT_OF_STOCK: Final = "out of stock in this zone"
FINISHED: Final = ("Succeeded", "Failed")


NO_NODE: Final[Json] = {"spec": {}, "status": {"conditions": []}}


class Answer(StrEnum):
    """The conditions that the stand-in sets."""

    ACCEPTED = "Accepted"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"
    REVOKED = "CapacityRevoked"


@dataclass(frozen=True, slots=True)
class Pool:
    """A node pool that grows from 0 to `most` nodes for the requests of one class.

    A request is accepted `accept_after` its creation, and its nodes come `provide_after` that.
    """

    provisioning_class: str = "queued-provisioning.gke.io"
    name: str = "gpu-pool"
    shape: Shape = field(default_factory=lambda: Shape(cpu="8", memory="32Gi", gpu=1, taints=TAINTS))
    most: int = 10
    accept_after: timedelta = timedelta(seconds=1)
    provide_after: timedelta = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Turn:
    """The next condition of a request, and when it is due."""

    answer: Answer
    due: datetime
    message: str = ""


class NoRoom(Exception):
    """The pool cannot hold the pods; the message says why."""


def next_turn(request: Json, pool: Pool) -> Turn | None:
    """The next condition of a request; None if there is none, for now or for ever."""
    status = request.get("status") or {}
    if has_condition(status, Answer.FAILED) or has_condition(status, Answer.REVOKED):
        return None
    created = _time(request["metadata"]["creationTimestamp"])
    if has_condition(status, Answer.PROVISIONED):
        revoked = (request["metadata"].get("annotations") or {}).get(REVOKE)
        return None if revoked is None else Turn(Answer.REVOKED, created, revoked)
    accepted, expected = created + pool.accept_after, created + pool.accept_after + pool.provide_after
    if not has_condition(status, Answer.ACCEPTED):
        return Turn(Answer.ACCEPTED, accepted, f"ETA: {expected:%Y-%m-%dT%H:%M:%SZ}")
    if _attempt(request) <= _failures(request):
        return Turn(Answer.FAILED, expected, OUT_OF_STOCK)
    return Turn(Answer.PROVISIONED, expected, "the nodes are ready")


def nodes_needed(crews: Iterable[tuple[Json, int]], pool: Pool) -> int:
    """The number of new nodes for these pods, each a pod spec and how many, first fit.

    Raises `NoRoom` if a pod fits no empty node.
    """
    empty = resource_amounts(pool.shape.capacity)
    free: list[Resources] = []
    for spec, count in crews:
        pod = pod_requests(spec) + {"pods": 1}
        if not pod.fits_in(empty):
            raise NoRoom(f"a pod is larger than a node of {pool.name}: {_too_small(pod, empty)}")
        for _ in range(count):
            at = next((at for at, room in enumerate(free) if pod.fits_in(room)), len(free))
            if at == len(free):
                free.append(empty)
            free[at] -= pod
    return len(free)


def conditions_with(request: Json, turn: Turn, now: datetime) -> list[Json]:
    """The conditions of a request after a turn."""
    old = (request.get("status") or {}).get("conditions") or []
    told = {
        "type": turn.answer,
        "status": "True",
        "reason": turn.answer,
        "message": turn.message,
        "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }
    return [*(each for each in old if each["type"] != turn.answer), told]


def make_nodes(request: Json, count: int, pool: Pool, now: datetime) -> list[Json]:
    """The nodes of a request; the same names each time."""
    uid = uid_of(request)
    nodes = [make_node(f"{pool.name}-{uid[:8]}-{at}", pool.shape, now) for at in range(count)]
    for each in nodes:
        each["metadata"]["labels"] |= {REQUEST_LABEL: uid, POOL_LABEL: pool.name}
    return nodes


def is_empty(node: Json, pods: Iterable[Json]) -> bool:
    """True if no pod on the node has yet to finish."""
    name = node["metadata"]["name"]
    return not any(
        pod["spec"].get("nodeName") == name and (pod.get("status") or {}).get("phase") not in FINISHED
        for pod in pods
    )


def _too_small(pod: Resources, empty: Resources) -> str:
    return ", ".join(
        f"{name}: needs {in_words(name, pod[name])}, {in_words(name, empty[name])} there"
        for name in pod.shortfall(empty)
    )


def _attempt(request: Json) -> int:
    """The number at the end of a request's name, which counts the attempts."""
    return _number(request["metadata"]["name"].rpartition("-")[2], otherwise=1)


def _failures(request: Json) -> int:
    return _number((request["spec"].get("parameters") or {}).get(FAIL_FIRST, ""), otherwise=0)


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isdecimal() else otherwise


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Autoscaler(StandIn):
    """Acts as the autoscaler of one pool on one API server."""

    about = "a stand-in for an autoscaler; watching ProvisioningRequests"

    def __init__(self, kubeconfig: Path, pool: Pool | None = None) -> None:
        self._pool = pool or Pool()
        self._requests, self._nodes, self._pods = View(), View(), View()
        super().__init__(
            kubeconfig,
            [
                Watched(REQUESTS, self._requests, [uid_of], needed=True),
                Watched(NODES, self._nodes, [request_of_node], {"labelSelector": REQUEST_LABEL}, needed=True),
                Watched(PODS, self._pods, [self._request_of_pod], needed=True),
            ],
        )

    def _primaries(self) -> Iterable[str]:
        return {*self._requests.by_uid, *map(request_of_node, self._nodes.by_uid.values())}

    def _name(self, uid: str) -> str:
        metadata = self._requests.by_uid.get(uid, {}).get("metadata", {})
        return f"{metadata.get('namespace')}/{metadata.get('name')}" if metadata else uid

    def _request_of_pod(self, pod: Json) -> str | None:
        name = pod["spec"].get("nodeName")
        nodes = self._nodes.by_uid.values()
        return next((request_of_node(each) for each in nodes if each["metadata"]["name"] == name), None)

    async def _reconcile(self, uid: str) -> None:
        request = self._requests.by_uid.get(uid)
        if request is None:
            await self._remove_nodes(uid)
            return
        if request["spec"]["provisioningClassName"] != self._pool.provisioning_class:
            return
        turn, now = next_turn(request, self._pool), datetime.now(UTC)
        if turn is None:
            return
        if turn.due > now:
            seconds = (turn.due - now) / timedelta(seconds=1)
            asyncio.get_running_loop().call_later(seconds, self._wake, uid)
            return
        await self._take(turn, request, now)

    async def _take(self, turn: Turn, request: Json, now: datetime) -> None:
        """Does what a condition promises, and sets it."""
        try:
            count = await self._nodes_for(request)
        except NoRoom as reason:
            turn = Turn(Answer.FAILED, turn.due, str(reason))
        else:
            if turn.answer is Answer.ACCEPTED:
                turn = Turn(turn.answer, turn.due, f"{count} nodes in {self._pool.name}, {turn.message}")
            elif turn.answer is Answer.PROVISIONED and not await self._has_nodes(
                make_nodes(request, count, self._pool, now)
            ):
                return  # a change of the nodes is a reason to look again
        log.info("%s: %s: %s", self._name(uid_of(request)), turn.answer, turn.message)
        conditions = conditions_with(request, turn, now)
        await self._patch_status(request, "provisioningrequests", {"conditions": conditions})

    async def _nodes_for(self, request: Json) -> int:
        """The number of nodes that a request needs; raises `NoRoom` if the pool cannot have so many."""
        needed = nodes_needed(
            [await self._crew(request, each) for each in request["spec"]["podSets"]], self._pool
        )
        others = [each for each in self._nodes.by_uid.values() if request_of_node(each) != uid_of(request)]
        if len(others) + needed > self._pool.most:
            raise NoRoom(
                f"{self._pool.name} has {len(others)} nodes and at most {self._pool.most}; {needed} more are needed"
            )
        return needed

    async def _crew(self, request: Json, pod_set: Json) -> tuple[Json, int]:
        """The pod spec of a pod set and how many pods it has."""
        namespace, name = request["metadata"]["namespace"], pod_set["podTemplateRef"]["name"]
        found = await self._api.request("GET", f"/api/v1/namespaces/{namespace}/podtemplates/{name}")
        return found["template"]["spec"], pod_set["count"]

    async def _has_nodes(self, wanted: Sequence[Json]) -> bool:
        """True once all of these nodes are usable; adds those that do not exist."""
        found = {each["metadata"]["name"]: each for each in self._nodes.by_uid.values()}
        for each in wanted:
            if each["metadata"]["name"] not in found:
                await self._add_node(each)
        return all(is_usable(found.get(each["metadata"]["name"], NO_NODE)) for each in wanted)

    async def _add_node(self, node: Json) -> None:
        try:
            created = await self._api.request("POST", NODES, node)
        except RefusedError as refusal:
            if refusal.status != 409:
                raise
        else:
            self._nodes.expect(created, asyncio.get_running_loop().time())

    async def _remove_nodes(self, uid: str) -> None:
        for node in [each for each in self._nodes.by_uid.values() if request_of_node(each) == uid]:
            if is_empty(node, self._pods.by_uid.values()):
                try:
                    await self._api.request("DELETE", f"{NODES}/{node['metadata']['name']}")
                except RefusedError as refusal:
                    if refusal.status != 404:
                        raise
                log.info("removed %s", node["metadata"]["name"])


def request_of_node(node: Mapping[str, Any]) -> str:
    """The uid of the request for which a node was added."""
    return str(node["metadata"]["labels"][REQUEST_LABEL])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the stand-in until SIGTERM."""
    usual = Pool()
    parser = argparse.ArgumentParser(
        prog="python -m testbed.autoscaler",
        description="A stand-in for an autoscaler, not one itself: adds nodes that exist only in the API for "
        "ProvisioningRequests, and removes them.",
    )
    parser.add_argument("--kubeconfig", type=Path, required=True, help="how to reach the API server")
    parser.add_argument(
        "--class", dest="provisioning_class", default=usual.provisioning_class, help="(%(default)s)"
    )
    parser.add_argument("--cpu", default=usual.shape.cpu, help="of a node (%(default)s)")
    parser.add_argument("--memory", default=usual.shape.memory, help="of a node (%(default)s)")
    parser.add_argument("--gpus", type=int, default=usual.shape.gpu, help="of a node (%(default)s)")
    parser.add_argument("--most", type=int, default=usual.most, help="nodes of the pool (%(default)s)")
    parser.add_argument(
        "--accept-after", type=float, default=usual.accept_after.total_seconds(), help="seconds (%(default)s)"
    )
    parser.add_argument(
        "--provide-after",
        type=float,
        default=usual.provide_after.total_seconds(),
        help="seconds (%(default)s)",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    pool = Pool(
        provisioning_class=options.provisioning_class,
        shape=Shape(cpu=options.cpu, memory=options.memory, gpu=options.gpus, taints=TAINTS),
        most=options.most,
        accept_after=timedelta(seconds=options.accept_after),
        provide_after=timedelta(seconds=options.provide_after),
    )
    asyncio.run(run_until_told(Autoscaler(options.kubeconfig, pool)))


if __name__ == "__main__":
    main()
