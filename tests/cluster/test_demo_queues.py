"""`make demo-queues`, as somebody runs it: the story it tells, and that nothing is left of it."""

import pytest

from tests.cluster.demos import STORY_SECONDS, assert_tells

pytestmark = pytest.mark.exhaustive


@pytest.mark.timeout(STORY_SECONDS + 60)
def test_demo_of_the_queues_tells_its_story() -> None:
    assert_tells(
        "demo_queues",
        "6 to vision, 4 to speech, 6 to serving",
        "$ kubectl apply -f examples/queues/departments/queues.yaml",
        "vision   sweep      6  Running\n",
        "vision 16 of 6, borrows 10; speech 0 of 4; serving 0 of 6.\n",
        "quota of vision: nvidia.com/gpu: needs 2, 0 available; nominal 6, 16 used\n",
        "preempted for default/assistant (queue serving, priority 0): its queue uses more",
        "serving  assistant  4  Running\n",
        "vision 12 of 6, borrows 6; speech 0 of 4; serving 4 of 6.\n",
        "preempted for default/dictate (queue speech, priority 0): its queue uses more",
        "vision 8 of 6, borrows 2; speech 4 of 4; serving 4 of 6.\n",
        "preempted for default/deadline (queue vision, priority 10): in its own queue",
        "vision   deadline   6  Running\n",
        "$ kubectl delete appwrapper assistant\n",
        "vision   ablation   4  Running\n",
        "$ kubectl delete appwrapper deadline\n",
        "vision   pretrain   6  Running\n",
        "vision 12 of 6, borrows 6; speech 4 of 4; serving 0 of 6.\n",
        "$ dispatcher queues\n",
        "    vision   nvidia.com/gpu  6        12    6         0          3        1        -      Active\n",
        "│ sweep     │ QuotaReclaimed  │ assistant │\n",
        "│ ablation  │ QuotaReclaimed  │ dictate   │\n",
        "│ pretrain  │ PriorityInQueue │ deadline  │\n",
    )
