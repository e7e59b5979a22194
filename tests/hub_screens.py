"""The screens of the commands that change AppWrappers or read their pods, on a scripted hub."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from tests.builders import make_appwrapper, make_metadata
from tests.fakes import FakeApiServer, answer, text, watch
from tests.unit.cli.wire import merged, plain_kubeconfig

Json = dict[str, Any]

COLLECTION: Final = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers"
PODS: Final = "/api/v1/namespaces/team-a/pods"
OF_HUB: Final[Mapping[str, Sequence[str]]] = {
    "verbs": (
        "kubectl aw hold train-8 sweep",
        "kubectl aw release train-9",
        "kubectl aw priority 10 train-8",
        "kubectl aw cancel train-8 --dry-run",
    ),
    "submit": ("kubectl aw submit train.yaml --wait", "kubectl aw wait train-8 --for running"),
    "logs": ("kubectl aw logs train-7", "kubectl aw logs sweep --commands"),
}
"""The commands of each screen, in order."""


def _appwrapper(name: str, state: str, spec: Json | None = None, **status: object) -> Json:
    coarse = "Completed" if state == "Completed" else "Running" if "cluster" in status else "Pending"
    shown = {"queuejobstate": state, "state": coarse, **status} if state else {}
    return make_appwrapper(name, spec=spec, status=shown, namespace="team-a")


WAITS: Final = {"reason": "InsufficientResources", "message": "cluster hub: cpu: needs 15, 6 free"}
KUBECONFIG: Final = "hub.kubeconfig"
MANIFEST: Final = "train.yaml"
SUBMITTED: Final = {**make_appwrapper(), "metadata": {"name": "train-7"}, "status": {}}
APPWRAPPERS: Final = {
    "train-7": _appwrapper("train-7", "Running", cluster="hub"),
    "train-8": _appwrapper("train-8", "Backoff", waiting=WAITS),
    "train-9": _appwrapper("train-9", "Suspended", {"suspend": True}),
    "sweep": _appwrapper("sweep", "Running", cluster="hub"),
}
SHOWN_AT: Final = datetime(2026, 4, 1, 10, 30, tzinfo=UTC)
_REQUESTS: Final = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
_SINCE: Final = {"status": "True", "lastTransitionTime": "2026-04-01T07:30:00Z"}
SHOWN: Final = make_appwrapper(
    "sweep",
    {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sweep"},
        "spec": {
            "parallelism": 4,
            "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": _REQUESTS}}]}},
        },
    },
    namespace="vision",
    uid="6f1d0c3e-2b5f-4a39-8f2e-6a1c1f0b7d55",
    creationTimestamp="2026-04-01T07:30:00Z",
    status={
        "state": "Pending",
        "queuejobstate": "Backoff",
        "systempriority": 0,
        "queue": "vision",
        "user": "ada",
        "gpus": 4,
        "conditions": [
            {"type": "Init", **_SINCE},
            {"type": "Queueing", "reason": "AwaitingHeadOfLine", **_SINCE},
            {"type": "HeadOfLine", "reason": "FrontOfQueue.", **_SINCE},
            {
                "type": "Backoff",
                "reason": "AppWrapperNotRunnable.",
                "message": "Insufficient resources to dispatch AppWrapper.",
                **_SINCE,
            },
        ],
        "waiting": {
            "reason": "InsufficientResources",
            "message": "cluster hub: nvidia.com/gpu: needs 4, 2 free",
            "position": 2,
            "queueLength": 9,
            "holders": [
                {
                    "name": "pretrain",
                    "namespace": "vision",
                    "user": "ada",
                    "since": "2026-04-01T07:30:00Z",
                }
            ],
            "otherHolders": 1,
            "repair": {"message": "it would be dispatched without pretrain", "remove": ["pretrain"]},
        },
    },
)
"""An AppWrapper that waits, as `show` describes it from its status at `SHOWN_AT`."""
PODS_OF: Final = {"train-7": ("train-7-0",), "sweep": ("sweep-cj6jb", "sweep-m78tt", "sweep-mnpgh")}


def of_hub(screen_of: Callable[[str, str], str]) -> Iterator[tuple[str, str]]:
    """The screens by name; the first line of each is the output of its first command.

    `screen_of` returns what a command prints with a kubeconfig.
    """
    with _scripted_hub() as folder:

        def output_of(command: str) -> str:
            return screen_of(command.replace(MANIFEST, str(folder / MANIFEST)), str(folder / KUBECONFIG))

        for name, (first, *others) in OF_HUB.items():
            outputs = [output_of(first), *(f"$ {command}\n{output_of(command)}" for command in others)]
            yield name, "".join(outputs)


@contextmanager
def _scripted_hub() -> Iterator[Path]:
    """A folder with a manifest and the kubeconfig of a hub, which another thread serves."""
    found: list[str] = []
    is_ready, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with FakeApiServer() as server:
            _script(server)
            found.append(server.url)
            is_ready.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    is_ready.wait()
    try:
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = plain_kubeconfig(found[0], "team-a")
            for name, content in {KUBECONFIG: kubeconfig, MANIFEST: SUBMITTED}.items():
                (Path(folder) / name).write_text(yaml.safe_dump(content), encoding="utf-8")
            yield Path(folder)
    finally:
        is_over.set()
        thread.join()


def _controller(name: str) -> Json:
    """The reference of a pod that the AppWrapper itself wraps."""
    api_version = SUBMITTED["apiVersion"]
    uid = APPWRAPPERS[name]["metadata"]["uid"]
    return {"apiVersion": api_version, "kind": "AppWrapper", "name": name, "uid": uid, "controller": True}


def _script(server: FakeApiServer) -> None:
    for name, raw in APPWRAPPERS.items():
        path = f"{COLLECTION}/{name}"
        server.on("GET", path, answer(raw))
        server.on("PATCH", path, merged(raw))
        server.on("DELETE", path, answer({"status": "Success"}))
    server.on("POST", COLLECTION, answer(_appwrapper("train-7", ""), status=201))
    server.on(
        "GET",
        COLLECTION,
        answer({"metadata": {"resourceVersion": "1"}, "items": [_appwrapper("train-7", "")]}),
        watch(
            *(
                {"type": "MODIFIED", "object": each}
                for each in (
                    _appwrapper("train-7", "Backoff", waiting=WAITS),
                    _appwrapper("train-7", "Running", cluster="hub"),
                    _appwrapper("train-7", "Completed", cluster="hub"),
                )
            )
        ),
        answer({"metadata": {"resourceVersion": "1"}, "items": [APPWRAPPERS["train-8"]]}),
        watch({"type": "MODIFIED", "object": _appwrapper("train-8", "Running", cluster="hub")}),
    )
    pods = [
        {
            "metadata": make_metadata(pod, namespace="team-a", ownerReferences=[_controller(name)]),
            "spec": {"containers": [{"name": "main"}]},
        }
        for name, names in PODS_OF.items()
        for pod in names
    ]
    server.on("GET", PODS, *(answer({"metadata": {}, "items": each}) for each in (pods[:1], pods[1:])))
    server.on("GET", f"{PODS}/train-7-0/log", text("epoch 1\nepoch 2\n", 200))
