"""`make demo-provisioning`, as somebody runs it: the story it tells, and that nothing is left of it."""

from collections.abc import Iterator

import pytest

from testbed import build
from tests.cluster.demos import Run, assert_in_order, fresh_folder

pytestmark = pytest.mark.exhaustive

STORY_SECONDS = 200


@pytest.fixture
def run() -> Iterator[Run]:
    """The demo, begun."""
    build.ensure()
    with fresh_folder() as folder:
        run = Run("demo_provisioning", folder / "provisioning")
        yield run
        run.kill()


@pytest.mark.timeout(STORY_SECONDS + 60)
def test_demo_of_requested_capacity_tells_its_story(run: Run) -> None:
    assert run.end(patience=STORY_SECONDS) == 0, run.output

    assert_in_order(
        run.output,
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
    assert "train  Completed " in run.output
    assert run.left_behind() == []
