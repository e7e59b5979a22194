"""KubeRay's own operator at a plane, and a server in place of Ray's dashboards.

The operator is compiled from its Go module, with the definitions of its kinds; `DISPATCHER_TEST_KUBERAY` chooses one of
the supported releases. Its admission webhook is off, as in KubeRay's Helm chart.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from testbed import built_operators
from testbed.build import BuildFailed, Say
from testbed.built_operators import BuiltOperator, RunningOperator
from testbed.plane import Plane, Wanted
from testbed.ports import Ports
from testbed.processes import Process, Supervisor

ROOT: Final = Path(__file__).resolve().parent.parent
MODULE: Final = "github.com/ray-project/kuberay/ray-operator"
VERSION_VARIABLE: Final = "DISPATCHER_TEST_KUBERAY"
CLUSTER_LABEL: Final = "ray.io/cluster"
GROUP_LABEL: Final = "ray.io/group"
HEAD_GROUP: Final = "headgroup"


def _release(version: str) -> BuiltOperator:
    return BuiltOperator(
        name="kuberay",
        module=MODULE,
        version=version,
        package=MODULE,
        crds="config/crd/bases",
        arguments=(
            "--enable-leader-election=false",
            "--metrics-addr=0",
            "--health-probe-bind-address=127.0.0.1:{probes}",
            "--reconcile-concurrency=4",
        ),
        ready="/readyz",
    )


NEWEST: Final = _release("v1.6.0")
OLDEST: Final = _release("v1.5.0")
"""The oldest release that the dispatcher supports."""
RELEASES: Final = (OLDEST, NEWEST)


def chosen() -> BuiltOperator:
    """The release that `DISPATCHER_TEST_KUBERAY` names, as `1.5`; the newest one without it. Raises `BuildFailed`."""
    name = os.environ.get(VERSION_VARIABLE, "")
    if not name:
        return NEWEST
    found = next((each for each in RELEASES if each.version.startswith(f"v{name}.")), None)
    if found is None:
        versions = ", ".join(each.version for each in RELEASES)
        raise BuildFailed(f"{VERSION_VARIABLE}={name}: the testbed has KubeRay {versions}")
    return found


def ensure(say: Say | None = None) -> built_operators.OperatorFiles:
    """The operator's files, built first if necessary: one to three minutes on two cores, once. Raises `BuildFailed`."""
    return built_operators.ensure(chosen(), say)


def with_ray_kinds(wanted: Wanted) -> Wanted:
    """The same plane, which serves KubeRay's kinds from the start; builds the operator first if necessary."""
    return replace(wanted, crds=(*wanted.crds, *ensure().crds))


class KubeRay:
    """The operator at one plane. `down` or the supervisor ends it; `label` tells several of a supervisor apart."""

    def __init__(self, supervisor: Supervisor, plane: Plane, label: str = "") -> None:
        self._supervisor = supervisor
        self._ports = Ports("dashboards")
        supervisor.afterwards(self._ports.release)
        port = self._ports["dashboards"]
        suffix = f"-{label}" if label else ""
        self._dashboards: Process = supervisor.start(
            f"ray-dashboards{suffix}",
            [
                *(sys.executable, "-m", "testbed.ray_dashboard", "--kubeconfig", str(plane.kubeconfig)),
                *("--port", str(port), "--work-seconds", str(plane.wanted.work_seconds)),
            ],
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(plane.folder)},
            cwd=ROOT,
        )
        # Only requests by plain HTTP go through it: those to the API server are TLS.
        environment = {"HTTP_PROXY": f"http://127.0.0.1:{port}"}
        self.operator = RunningOperator(
            supervisor, chosen(), plane.kubeconfig, label=label, environment=environment
        )

    def up(self) -> None:
        """Returns when the operator works; raises `ProcessDied` or `NotReady`."""
        self.operator.up()

    def check(self) -> None:
        """Raises `ProcessDied` if one of them has ended."""
        self.operator.process.check()
        self._dashboards.check()

    def down(self) -> None:
        """Ends both. Safe to repeat."""
        self.operator.down()
        self._supervisor.stop(self._dashboards)
        self._ports.release()
