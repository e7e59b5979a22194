"""`make demo-hub` and `make dev-hub`, as somebody runs them: what they say, and that nothing is left of them."""

import signal

import pytest

from testbed import build
from tests.cluster.demos import STORY_SECONDS, Run, assert_tells, fresh_folder, in_shell

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


# --- `make dev-hub`, as somebody runs it -------------------------------------------------------------------


@pytest.mark.timeout(2 * STORY_SECONDS)
def test_dev_hub_has_two_members_in_sight_and_leaves_nothing() -> None:
    build.ensure()
    with fresh_folder() as folder:
        run = Run("dev_hub", folder / "dev-hub")
        try:
            run.wait_for("Ctrl-C ends all of it.", STORY_SECONDS)
            listed = in_shell(run, "dispatcher clusters list")
            assert [line.split()[:2] for line in listed[1:]] == [["east", "True"], ["west", "True"]]
            contexts = in_shell(run, "kubectl config get-contexts -o name")
            assert sorted(contexts) == ["east", "hub", "west"]
            assert in_shell(run, "kubectl --context west get nodes -o name") == ["node/node-0", "node/node-1"]
            assert run.end(signal.SIGTERM) == 0
            assert run.left_behind() == []
        finally:
            run.kill()
