"""`python -m testbed.dev`, or `make dev`: the whole stack, for interactive use until Ctrl-C.

Everything is new at each start, and is removed at the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from testbed import build
from testbed.__main__ import raise_on_signals
from testbed.plane import NotReady
from testbed.postgres import NoPostgres
from testbed.processes import FolderInUse, ProcessDied, Supervisor
from testbed.stack import ROOT, Stack, ignore_signals

STATE: Final = ROOT / ".dev" / "dev"
LOOK_SECONDS: Final = 0.5

TRY: Final = """\
kubectl apply -f examples/aw-raycluster-glue.yaml -f examples/aw-raycluster-glue-1.yaml
kubectl get aw                                     # one runs, the other waits
kubectl get rayclusters,pods,services              # and nothing of it exists
kubectl describe aw raycluster-glue-1              # why
psql "$DISPATCHER_DATABASE_URL" -c 'TABLE history.queue_now'
kubectl delete aw raycluster-glue
kubectl wait aw raycluster-glue-1 --for=condition=Running
psql "$DISPATCHER_DATABASE_URL" -c 'SELECT * FROM history.timeline ORDER BY id'\
"""


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
        stack = Stack(supervisor, binaries)
        try:
            stack.up(lambda part: print(f"  {part}", flush=True))
            print(how_to_reach(stack), flush=True)
            watch(stack)
        finally:
            ignore_signals()
            stack.down()


def how_to_reach(stack: Stack) -> str:
    """The commands for another terminal."""
    file = stack.write_exports()
    return "\n".join(
        [
            f"\nIn another terminal: source {file}, which is\n",
            *stack.exports(),
            "\nand then, for example:\n",
            TRY,
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
