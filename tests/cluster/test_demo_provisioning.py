"""`make demo-provisioning`, as somebody runs it: the story it tells, and that nothing is left of it."""

import pytest

from tests.cluster.demos import STORY_SECONDS, assert_tells

pytestmark = pytest.mark.exhaustive


@pytest.mark.timeout(STORY_SECONDS + 60)
def test_demo_of_requested_capacity_tells_its_story() -> None:
    said = assert_tells(
        "demo_provisioning",
        "$ kubectl apply -f examples/provisioning/queue.yaml",
        "gpu-pool: 0 nodes\n",
        "$ kubectl get provisioningrequests\n",
        "train-provisioning-1   True",
        "request train-provisioning-1: Provisioned\n",
        "train  Running      4 running\n",
        "request train-provisioning-1: deleted\n",
        "request tune-provisioning-2: Provisioned\n",
        "tune   Running      4 running\n",
        "cluster hub: 2 nodes in gpu-pool, ETA: ",
        "│ provisioning-failed │ Dispatching │ Requeueing  │ the capacity cannot be provisioned in     │\n",
        "cluster hub: Failed: out of stock in this │\n",
        "zone; retry 1 of 3 in 2 s                 │\n",
        "│ provisioned         │ Dispatching │ Dispatching │",
        "│ created             │ Dispatching │ Dispatched  │",
    )
    assert "train  Completed " in said
