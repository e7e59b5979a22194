"""`make demo-hub`, as somebody runs it: the story it tells, and that nothing is left of it."""

import pytest

from tests.cluster.demos import STORY_SECONDS, assert_tells

pytestmark = pytest.mark.exhaustive


@pytest.mark.timeout(STORY_SECONDS + 60)
def test_demo_of_the_hub_tells_its_story() -> None:
    assert_tells(
        "demo_hub",
        "hub: no nodes",
        "$ dispatcher clusters add west",
        "member cluster west created",
        "$ dispatcher clusters list",
        "$ kubectl apply -f ",
        "tune-h100  Running      west\n",
        "pretrain   Queued             east: nvidia.com/gpu: needs 6, 4 free; west: nvidia.com/gpu: needs 6, 0 free\n",
        "West dies",
        "train-1    Running      west  ClusterUnreachable\n",
        "tune-h100  Queued             east: ClusterNotSelected; west: ClusterUnreachable\n",
        "$ kubectl delete appwrapper tune-1\n",
        "West is back",
        "│ tune-h100 │ 2    │ west, then west │ 2          │ west        │\n",
        "│ train-1   │ 3    │ west, then east │ 2          │ east        │\n",
        "│ train-2   │ 3    │ west, then east │ 2          │ east        │\n",
        "│ tune-1    │ 2    │ east            │ 1          │ -           │\n",
        "│ pretrain  │ 6    │ west            │ 1          │ west        │\n",
        "Objects in each cluster: hub 9, east 37, west 14.",
    )
