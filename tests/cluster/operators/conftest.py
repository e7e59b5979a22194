"""One control plane beside which real operators run, each from the first test on that needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from testbed import build, built_operators
from testbed.batch_operators import OPERATORS, definitions
from testbed.built_operators import BuiltOperator, RunningOperator
from testbed.kuberay_operator import KubeRay, with_ray_kinds
from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.conftest import BLOG_NODES, CRDS

Start = Callable[[BuiltOperator], RunningOperator]


def skip_without(operator: BuiltOperator) -> None:
    """Skips the test if an operator is not built; that is an error where nothing may be skipped."""
    if built_operators.find(operator) is None:
        message = f"{operator.name} is not built: run `make operators`, which takes some minutes once"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


@pytest.fixture(scope="package")
def plane(supervisor: Supervisor) -> Iterator[Plane]:
    """The control plane, in place of the blog's; it ends with the last test of this folder."""
    built = [each for each in OPERATORS if built_operators.find(each) is not None]
    wanted = with_ray_kinds(replace(BLOG_NODES, crds=[*CRDS, *definitions(built)]))
    plane = Plane(supervisor, build.ensure(), "operators", wanted)
    plane.up()
    yield plane
    plane.down()


@pytest.fixture(scope="package")
def kuberay(supervisor: Supervisor, plane: Plane) -> Iterator[KubeRay]:
    """KubeRay's operator at this plane, from the first test on that needs it."""
    operator = KubeRay(supervisor, plane, plane.name)
    operator.up()
    yield operator
    operator.down()


@pytest.fixture(scope="package")
def start(supervisor: Supervisor, plane: Plane) -> Iterator[Start]:
    """Starts an operator unless it runs already; skips the test if it is not built."""
    running: dict[str, RunningOperator] = {}

    def started(operator: BuiltOperator) -> RunningOperator:
        skip_without(operator)
        if operator.name not in running:
            running[operator.name] = RunningOperator(supervisor, operator, plane.kubeconfig)
            running[operator.name].up()
        return running[operator.name]

    yield started
    for each in running.values():
        each.down()
