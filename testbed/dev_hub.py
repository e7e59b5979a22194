"""`python -m testbed.dev_hub`, or `make dev-hub`: a hub with two members, for drains and losses by hand until Ctrl-C.

The members run and are declared; the kubeconfig has a context for each, so that commands see their pods and nodes. A
member is lost and brought back by a line on stdin, because all its processes have to be killed at once. Everything is
new at each start, and is removed at the end.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

import yaml

from dispatcher.api.names import MEMBERS_PATH
from testbed import build
from testbed.__main__ import raise_on_signals
from testbed.dev import LOG, WORK_SECONDS
from testbed.nodes import KUBELET, Shape
from testbed.plane import NotReady, Wanted
from testbed.postgres import NoPostgres
from testbed.processes import FolderInUse, ProcessDied, Supervisor
from testbed.stack import CRDS, READY_SECONDS, ROOT, Setting, Stack, ignore_signals
from testbed.story import command_line

STATE: Final = ROOT / ".dev" / "dev-hub"
LOOK_SECONDS: Final = 0.5
NODE: Final = Shape(cpu="32", memory="128Gi", gpu=4, address=KUBELET)
NODES: Final = {"east": 3, "west": 2}
GPU_LABELS: Final = {"east": "gpu=a100", "west": "gpu=h100"}
GRACE_SECONDS: Final = 20
"""How long the gangs of a lost member wait for it."""
SETTING: Final = Setting(
    hub=Wanted(nodes=0, crds=CRDS),
    members={name: Wanted(count, NODE, CRDS, WORK_SECONDS, log=LOG) for name, count in NODES.items()},
    settings={"DISPATCHER_PROBE_SECONDS": "1", "DISPATCHER_UNREACHABLE_SECONDS": "3"},
)
LOSE: Final = "lose"
BACK: Final = "back"
USAGE: Final = f"type {LOSE} NAME or {BACK} NAME, of {' and '.join(NODES)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stack until a signal ends it; 0 then, 1 after a failure."""
    options = command_line("testbed.dev_hub", __doc__, STATE).parse_args(arguments)
    raise_on_signals()
    try:
        run(options.state)
    except KeyboardInterrupt:
        return 0
    except (build.BuildFailed, FolderInUse, NoPostgres, NotReady, ProcessDied) as error:
        print(f"dev-hub: {error}", file=sys.stderr)
        return 1


def run(folder: Path) -> NoReturn:
    """Starts the stack, declares the members, prints how to reach it, and follows the lines on stdin."""
    binaries = build.ensure()
    with Supervisor(folder) as supervisor:
        stack = Stack(supervisor, binaries, SETTING)
        try:
            stack.up(lambda part: print(f"  {part}", flush=True))
            kubeconfig = write_kubeconfig(stack)
            declare(stack)
            print(how_to_reach(stack, kubeconfig), flush=True)
            follow(stack, sys.stdin)
        finally:
            ignore_signals()
            stack.down()


def write_kubeconfig(stack: Stack) -> Path:
    """One kubeconfig with a context for the hub, which is the current one, and for each member by its name."""
    files = {"hub": stack.plane.kubeconfig} | {
        name: plane.kubeconfig for name, plane in stack.members.items()
    }
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "hub"}
    for part in ("clusters", "users", "contexts"):
        merged[part] = [
            {**entry, "name": name}
            for name, path in files.items()
            for entry in yaml.safe_load(path.read_text())[part]
        ]
    for context in merged["contexts"]:
        context["context"]["user"] = context["name"]
    path = stack.folder / "all.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(merged, sort_keys=False))
    return path


def declare(stack: Stack) -> None:
    """Declares the members, and returns once both take gangs; raises `NotReady`."""
    for name, plane in stack.members.items():
        argv = [
            *(sys.executable, "-m", "dispatcher", "clusters", "add", name),
            *("--member-kubeconfig", str(plane.kubeconfig), "--accepted-namespaces", "All"),
            *("--label", GPU_LABELS[name], "--on-lost", "requeue", "--grace", str(GRACE_SECONDS)),
        ]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, env=stack.environment, cwd=ROOT
        )
        if done.returncode:
            raise NotReady(f"member {name} was not declared: {done.stderr.strip()}")
    deadline = time.monotonic() + READY_SECONDS
    while not all(
        each.get("status", {}).get("free") for each in stack.plane.client.get(MEMBERS_PATH)["items"]
    ):
        stack.check()
        if time.monotonic() > deadline:
            raise NotReady("the hub does not know the capacity of its members")
        time.sleep(LOOK_SECONDS)


def how_to_reach(stack: Stack, kubeconfig: Path) -> str:
    """The commands for another terminal."""
    file = stack.write_exports()
    with file.open("a") as exports:
        exports.write(f"export KUBECONFIG={kubeconfig}\n")
    return "\n".join(
        [
            f"\nIn another terminal: . {file}",
            "Then, for example:\n",
            "kubectl aw submit examples/aw-job.yaml && kubectl aw running",
            "dispatcher clusters list",
            "dispatcher clusters drain west; dispatcher clusters uncordon west",
            "kubectl --context east get pods",
            f"\nHere: {USAGE}. Gangs of a lost member are queued again after {GRACE_SECONDS} s.",
            f"Nodes: east {NODES['east']}, west {NODES['west']}, of 4 GPUs each. No container runs; the pods of a job "
            f"succeed after {WORK_SECONDS} s",
            "(testbed/stages/README.md has the annotations that change this). docs/clusters.md says what to expect.",
            f"\nLogs are in {stack.folder / 'logs'}. Ctrl-C ends all of it.",
        ]
    )


def follow(stack: Stack, lines: TextIO) -> NoReturn:
    """Loses and brings back members as the lines say, for ever, or until a part ends unexpectedly."""
    lost: set[str] = set()
    is_open = True
    while True:
        stack.check()
        if not is_open:
            time.sleep(LOOK_SECONDS)
        elif select.select([lines], [], [], LOOK_SECONDS)[0]:
            line = lines.readline()
            is_open = bool(line)
            if line.strip():
                print(act(stack, line.split(), lost), flush=True)


def act(stack: Stack, words: Sequence[str], lost: set[str]) -> str:
    """Does what a line says, and returns a sentence about it; `lost` are the members that are lost."""
    match words:
        case ["lose", name] if name in stack.members:
            if name in lost:
                return f"{name} is lost already"
            stack.lose(name)
            lost.add(name)
            return f"{name} is lost: all its processes but etcd were killed"
        case ["back", name] if name in stack.members:
            if name not in lost:
                return f"{name} is not lost"
            stack.bring_back(name)
            lost.discard(name)
            return f"{name} is back"
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
