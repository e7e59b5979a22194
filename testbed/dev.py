"""`python -m testbed.dev`, or `make dev`: a whole cluster with users, for interactive use until Ctrl-C.

Everything is new at each start, and is removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from dispatcher.api.names import USER_ANNOTATION
from testbed import build
from testbed.__main__ import raise_on_signals
from testbed.batch_operators import JOBSET, LEADER_WORKER_SET, MPI, TRAINING
from testbed.client import MERGE_PATCH, ApiError
from testbed.nodes import KUBELET, Shape
from testbed.plane import NotReady, Wanted
from testbed.postgres import NoPostgres
from testbed.processes import FolderInUse, ProcessDied, Supervisor
from testbed.stack import (
    CRDS,
    NAMESPACE,
    NODES,
    POLICIES,
    READY_SECONDS,
    ROOT,
    Setting,
    Stack,
    ignore_signals,
)

STATE: Final = ROOT / ".dev" / "dev"
LOOK_SECONDS: Final = 0.5
POLL_SECONDS: Final = 0.1
WORK_SECONDS: Final = 60
USERS: Final = {"ada": "team-a", "ben": "team-a", "cleo": "team-b"}
NODE: Final = Shape(cpu="32", memory="128Gi", gpu=4, address=KUBELET)
LOG: Final = "No container runs here: this is the log of every container."
KINDS: Final = (
    *sorted((ROOT / "testbed" / "operated_crds").glob("*.yaml")),
    *sorted((ROOT / "testbed" / "optional_crds").glob("*.yaml")),
)
OWN_KIND: Final = {"Training.platform.example.com": "trainings"}
LISTED_KINDS: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps/appwrapper-kinds"
APPWRAPPERS: Final = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers"

POD_GROUPS: Final = (
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
    "--feature-gates=GenericWorkload=true",
)
"""Kubernetes has PodGroups of its own, which are off by default."""

SETTING: Final = Setting(
    hub=Wanted(NODES, NODE, (*CRDS, *KINDS), WORK_SECONDS, USERS, POD_GROUPS, LOG),
    settings={
        "DISPATCHER_SUBMITTER": "annotation",
        "DISPATCHER_KINDS_FILE": str(ROOT / "examples" / "own-kind" / "kinds.yaml"),
    },
    manifests=(
        *POLICIES,
        ROOT / "manifests" / "submitter-policy.yaml",
        ROOT / "manifests" / "base" / "roles.yaml",
        ROOT / "testbed" / "dev" / "users.yaml",
    ),
    operators=(JOBSET, LEADER_WORKER_SET, TRAINING, MPI),
    stand_ins=True,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stack until a signal ends it; 0 then, 1 after a failure."""
    options = parser().parse_args(arguments)
    raise_on_signals()
    try:
        run(options.state)
    except KeyboardInterrupt:
        return 0
    except (build.BuildFailed, FolderInUse, NoPostgres, NotReady, ProcessDied) as error:
        print(f"dev: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m testbed.dev", description=__doc__)
    top.add_argument(
        "--state", type=Path, default=STATE, metavar="FOLDER", help="kubeconfig, logs, data (%(default)s)"
    )
    return top


def run(folder: Path) -> NoReturn:
    """Starts the stack, prints how to reach it, and waits."""
    binaries = build.ensure()
    with Supervisor(folder) as supervisor:
        stack = Stack(supervisor, binaries, SETTING)
        try:
            stack.up(lambda part: print(f"  {part}", flush=True))
            settle(stack)
            print(how_to_reach(stack), flush=True)
            watch(stack)
        finally:
            ignore_signals()
            stack.down()


def settle(stack: Stack) -> None:
    """Gives users their kubeconfigs, and returns when they can submit; raises `NotReady`."""
    for user in USERS:
        _link(stack.folder / f"{user}.kubeconfig", stack.plane.kubeconfig_of(user))
    _link(stack.folder / "admin.kubeconfig", stack.plane.kubeconfig)
    stack.plane.client.request("PATCH", LISTED_KINDS, {"data": OWN_KIND}, MERGE_PATCH)
    deadline = time.monotonic() + READY_SECONDS
    while not (_is_stamped(stack) and _is_checked(stack)):
        stack.check()
        if time.monotonic() > deadline:
            raise NotReady("the API server does not enforce the policies")
        time.sleep(POLL_SECONDS)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _is_stamped(stack: Stack) -> bool:
    """True once the API server writes the submitter on an AppWrapper."""
    with contextlib.suppress(ApiError):
        created = stack.plane.client.request("POST", f"{APPWRAPPERS}?dryRun=All", _probe("v1", "ConfigMap"))
        return USER_ANNOTATION in (created["metadata"].get("annotations") or {})
    return False


def _is_checked(stack: Stack) -> bool:
    """True once the API server refuses kinds that are not listed, and knows the added one."""
    with contextlib.suppress(ApiError):
        stack.plane.client.request("POST", f"{APPWRAPPERS}?dryRun=All", _probe("none.example/v1", "None"))
        return False
    with contextlib.suppress(ApiError):
        training = _probe("platform.example.com/v1", "Training")
        stack.plane.client.request("POST", f"{APPWRAPPERS}?dryRun=All", training)
        return True
    return False


def _probe(version: str, kind: str) -> dict[str, Any]:
    """An AppWrapper that is only posted as a dry run."""
    wrapped = {"apiVersion": version, "kind": kind, "metadata": {"name": "probe"}}
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "probe"},
        "spec": {"resources": {"GenericItems": [{"generictemplate": wrapped}]}},
    }


def how_to_reach(stack: Stack) -> str:
    """The commands for another terminal."""
    file = stack.write_exports()
    users = [
        f"KUBECONFIG={stack.folder / user}.kubeconfig kubectl aw running    # {user}, in {namespace}"
        for user, namespace in USERS.items()
    ]
    return "\n".join(
        [
            f"\nIn another terminal: . {file}, which is\n",
            *stack.exports(),
            "\nThat is the administrator (admin.kubeconfig). Users have kubeconfigs of their own:\n",
            *users,
            "\nAll kinds of docs/kinds.md can be wrapped; no container runs. The pods of a job succeed after "
            f"{WORK_SECONDS} s, or as",
            "the annotation testbed.dispatcher.codeflare.dev/run-for of its pod template says (90s, 1h, forever).",
            "testbed/stages/README.md has more such annotations. An afternoon to play: docs/try-it.md, By hand.",
            f"\nLogs are in {stack.folder / 'logs'}. Ctrl-C ends all of it.",
        ]
    )


def watch(stack: Stack) -> NoReturn:
    """Waits for ever, or until a part ends unexpectedly."""
    while True:
        stack.check()
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
