from __future__ import annotations

import pytest

from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.nodes import Taint, Toleration
from dispatcher.core.model.resources import Resources

GPU = Taint("nvidia.com/gpu", "present", "NoSchedule")
DRAIN = Taint("drain", "", "NoExecute")
SPOT = Taint("spot", "true", "PreferNoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        pytest.param(Toleration("nvidia.com/gpu", "Equal", "present", "NoSchedule"), True, id="all-equal"),
        pytest.param(Toleration("nvidia.com/gpu", value="present"), True, id="any-effect"),
        pytest.param(Toleration("nvidia.com/gpu", "Exists"), True, id="any-value"),
        pytest.param(Toleration(operator="Exists"), True, id="everything"),
        pytest.param(Toleration(operator="Exists", effect="NoSchedule"), True, id="everything-of-an-effect"),
        pytest.param(Toleration(operator="Exists", effect="NoExecute"), False, id="another-effect"),
        pytest.param(Toleration("amd.com/gpu", "Exists"), False, id="another-key"),
        pytest.param(Toleration("nvidia.com/gpu", value="absent"), False, id="another-value"),
        pytest.param(Toleration("nvidia.com/gpu"), False, id="empty-value-is-a-value"),
        pytest.param(Toleration(), False, id="no-key-without-exists"),
        pytest.param(Toleration("nvidia.com/gpu", "Gt", "present"), False, id="operator-we-do-not-know"),
    ],
)
def test_toleration_covers_taints_as_kubernetes_says(toleration: Toleration, covers: bool) -> None:
    assert toleration.covers(GPU) is covers


def pod_set(*tolerations: Toleration) -> PodSet:
    return PodSet(1, Resources({"cpu": 1}), tolerations)


def test_pods_need_a_toleration_for_every_taint_that_keeps_pods_away() -> None:
    assert pod_set().tolerates(())
    assert pod_set().tolerates((SPOT,))
    assert not pod_set().tolerates((SPOT, GPU))
    assert not pod_set(Toleration("nvidia.com/gpu", "Exists")).tolerates((GPU, DRAIN))
    assert pod_set(Toleration("nvidia.com/gpu", "Exists"), Toleration("drain")).tolerates((GPU, DRAIN))


def test_gang_tolerates_only_what_all_of_its_pods_tolerate() -> None:
    tolerant, plain = pod_set(Toleration(operator="Exists")), pod_set()
    assert Gang(pod_sets=(tolerant,)).tolerates((GPU,))
    assert not Gang(pod_sets=(tolerant, plain)).tolerates((GPU,))


def test_gang_without_pod_sets_tolerates_no_taint_that_keeps_pods_away() -> None:
    assert Gang().tolerates((SPOT,))
    assert not Gang().tolerates((GPU,))
