"""`python -m testbed`: real clusters on this machine, for trying things out by hand."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from testbed import build, built_operators, kuberay_operator, monitoring
from testbed.batch_operators import OPERATORS
from testbed.client import ApiError
from testbed.nodes import Shape
from testbed.plane import NotReady, Plane, Wanted, up_all
from testbed.processes import FolderInUse, ProcessDied, Supervisor, end_owner, end_recorded

STATE = Path(__file__).resolve().parent.parent / ".dev"
NAMES = ("hub", *(f"member-{number}" for number in range(1, 10)))
LOOK_SECONDS = 0.5
OWNER_GRACE_SECONDS = 15.0

ABOUT = """\
Real Kubernetes control planes on one machine: no Docker, no images, no kubelets.

Every cluster is etcd, kube-apiserver, kube-controller-manager and kube-scheduler 1.36.3. Its nodes
exist only in the API, and KWOK plays their kubelets: pods are bound, become Running, finish and
fail as their annotations say (testbed/stages/README.md), and no container is ever run.

The first run compiles all this from source with Go: about ten minutes on two cores, and 5 GB in
~/.cache/appwrapper-dispatcher. If there is no Go 1.26, one is installed there too.
"""

EXAMPLES = """\
examples:
  python -m testbed up                                   one cluster, four nodes; Ctrl-C ends it
  python -m testbed up --clusters 3 --nodes 2 --gpu 8    a hub and two members, 16 GPUs each
  .dev/clusters/hub/kubectl get nodes                    kubectl for that cluster
  python -m testbed down                                 ends what another terminal started
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ApiError, build.BuildFailed, FolderInUse, NotReady, ProcessDied) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m testbed",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="{build,up,down}")
    building = commands.add_parser(
        "build", help="only build the control plane and KubeRay's operator, or say where they are"
    )
    building.add_argument(
        "--prometheus", action="store_true", help="Prometheus and promtool, in place of the control plane"
    )
    building.add_argument("--helm", action="store_true", help="Helm, in place of the control plane")
    building.add_argument(
        "--operators",
        action="store_true",
        help="the operators that tests need beside KubeRay",
    )
    building.set_defaults(run=run_build)
    add_up(commands.add_parser("up", help="start clusters and keep them until interrupted"))
    down = commands.add_parser("down", help="end everything that was started in a state folder")
    add_state(down)
    down.set_defaults(run=run_down)
    return top


def add_up(up: argparse.ArgumentParser) -> None:
    """Adds the options of `up`."""
    shape = Shape()
    up.add_argument(
        "--clusters",
        type=int,
        default=1,
        choices=range(1, len(NAMES) + 1),
        metavar="N",
        help="how many: a hub, and members from the second on (%(default)s)",
    )
    up.add_argument("--nodes", type=int, default=4, metavar="N", help="nodes of each cluster (%(default)s)")
    up.add_argument("--cpu", default=shape.cpu, help="CPUs of each node (%(default)s)")
    up.add_argument("--memory", default=shape.memory, help="memory of each node (%(default)s)")
    up.add_argument("--gpu", type=int, default=shape.gpu, help="nvidia.com/gpu of each node (%(default)s)")
    up.add_argument(
        "--crd",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="serve these CRDs from the start: the garbage collector learns later ones only after 30 s",
    )
    add_state(up)
    up.set_defaults(run=run_up)


def add_state(command: argparse.ArgumentParser) -> None:
    """Adds the option of the state folder."""
    command.add_argument(
        "--state", type=Path, default=STATE, metavar="FOLDER", help="kubeconfigs, logs, data (%(default)s)"
    )


def run_build(options: argparse.Namespace) -> int:
    """Builds programs and prints the folder of the first."""
    if options.prometheus:
        print(monitoring.ensure().prometheus.parent)
    elif options.helm:
        print(build.ensure_helm().parent)
    elif options.operators:
        for each in OPERATORS:
            print(built_operators.ensure(each).program.parent)
    else:
        built = build.ensure()
        kuberay_operator.ensure()
        print(built.kcp.parent)
    return 0


def run_up(options: argparse.Namespace) -> int:
    """Starts clusters, prints how to reach them, and waits for the end."""
    raise_on_signals()
    binaries = build.ensure()
    shape = Shape(cpu=options.cpu, memory=options.memory, gpu=options.gpu)
    wanted = Wanted(options.nodes, shape, options.crd)
    with Supervisor(options.state) as supervisor:
        began = time.monotonic()
        planes = [Plane(supervisor, binaries, name, wanted) for name in NAMES[: options.clusters]]
        up_all(planes)
        print(f"# {len(planes)} ready after {time.monotonic() - began:.1f} s; Ctrl-C ends all")
        for each in planes:
            print("export", *(f"{name}={value}" for name, value in each.environment.items()))
        print(
            f"export PATH={binaries.kubectl.parent}:$PATH  # kubectl; or run {planes[0].kubectl}", flush=True
        )
        watch(planes)


def watch(planes: Sequence[Plane]) -> NoReturn:
    """Waits for ever, or until a component ends unexpectedly."""
    while True:
        for each in planes:
            each.check()
        time.sleep(LOOK_SECONDS)


def run_down(options: argparse.Namespace) -> int:
    """Ends the owner of a state folder and its remaining processes."""
    had_owner = end_owner(options.state, OWNER_GRACE_SECONDS)
    left = end_recorded(options.state)
    print("nothing was running" if not had_owner and not left else "ended")
    return 0


def raise_on_signals() -> None:
    """Makes the signals that end a program end it as Ctrl-C does: in order, through every `with`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def interrupt(number: int, _: FrameType | None) -> NoReturn:
    """Raises KeyboardInterrupt once: a second signal must not interrupt the cleanup after the first."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
