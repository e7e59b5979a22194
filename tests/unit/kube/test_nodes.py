"""Nodes and pods, read from the API server's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.capacity import Node, Pod, PodPhase
from dispatcher.core.gang import Taint
from dispatcher.core.record import ObjectRef
from dispatcher.core.resources import Resources
from dispatcher.kube.nodes import PodView, decode_node, decode_pod
from tests.builders import make_node, make_pod


def test_node_is_what_it_can_give_and_to_whom() -> None:
    raw = make_node(
        spec={
            "taints": [
                {"key": "gpu", "effect": "NoSchedule"},
                {"key": "a", "value": "b", "effect": "NoExecute"},
            ]
        },
        **{"cpu": "7910m", "memory": "61Gi", "nvidia.com/gpu": "1"},
    )
    assert decode_node(raw) == Node(
        "n1",
        Resources({"cpu": 7910, "memory": 61 * 2**30, "nvidia.com/gpu": 1}),
        usable=True,
        taints=(Taint("gpu", "", "NoSchedule"), Taint("a", "b", "NoExecute")),
    )


@pytest.mark.parametrize(
    ("raw", "usable"),
    [
        pytest.param(make_node(), True, id="ready"),
        pytest.param(make_node(ready="False"), False, id="not-ready"),
        pytest.param(make_node(ready="Unknown"), False, id="silent"),
        pytest.param(make_node(spec={"unschedulable": True}), False, id="cordoned"),
        pytest.param({"metadata": {"name": "n1"}}, False, id="just-registered"),
    ],
)
def test_node_is_usable_if_ready_and_not_cordoned(raw: dict[str, Any], usable: bool) -> None:
    assert decode_node(raw).usable is usable


def test_amount_that_cannot_be_counted_counts_as_none() -> None:
    assert decode_node(make_node(cpu="8", memory="8Ei")).allocatable == Resources({"cpu": 8000})


RAYCLUSTER = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "uid-of-ray"}


def test_pod_is_what_it_asks_for_where_it_is_and_whose_it_says_it_is() -> None:
    assert decode_pod(make_pod("worker", cpu="1500m", of="the-appwrapper", controller=RAYCLUSTER)) == PodView(
        Pod("uid-of-worker", Resources({"cpu": 1500}), node="n1", phase=PodPhase.RUNNING, owner=None),
        claimed_by="the-appwrapper",
        controller=ObjectRef(-1, "ray.io/v1", "RayCluster", "default", "ray", "uid-of-ray"),
    )


def test_foreign_pod_that_is_just_created_claims_nothing() -> None:
    raw = {"metadata": {"uid": "p", "name": "p", "namespace": "default"}, "spec": {"containers": []}}
    assert decode_pod(raw) == PodView(Pod("p", Resources()), claimed_by=None, controller=None)


@pytest.mark.parametrize("phase", PodPhase)
def test_every_phase_of_a_pod_is_understood(phase: PodPhase) -> None:
    assert decode_pod(make_pod(phase=phase.value)).pod.phase is phase
