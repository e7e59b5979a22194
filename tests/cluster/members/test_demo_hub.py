"""`make demo-hub`, as somebody runs it: the story it tells, and that nothing is left of it."""

from collections.abc import Iterator

import pytest

from testbed import build
from tests.cluster.demos import Run, assert_in_order, fresh_folder

pytestmark = pytest.mark.exhaustive

STORY_SECONDS = 300


@pytest.fixture
def run() -> Iterator[Run]:
    """The demo, begun."""
    build.ensure()
    with fresh_folder() as folder:
        run = Run("demo_hub", folder / "hub")
        yield run
        run.kill()


@pytest.mark.timeout(STORY_SECONDS + 60)
def test_demo_of_the_hub_tells_its_story(run: Run) -> None:
    assert run.end(patience=STORY_SECONDS) == 0, run.output

    assert_in_order(
        run.output,
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
    assert run.left_behind() == []
