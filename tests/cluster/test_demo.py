"""`make demo` and `make dev`, as somebody runs them: what they say, and that nothing is left of them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import build, kuberay_operator
from testbed.dev import LOG
from tests.cluster.demos import (
    CHECKOUT,
    STORY_SECONDS,
    Run,
    assert_tells,
    fresh_folder,
    in_shell,
)

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where each run has a folder of its own."""
    build.ensure()
    kuberay_operator.ensure()
    with fresh_folder() as folder:
        yield folder


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    """A demo that only just begins: cut short in time, whatever else the machine does."""
    run = Run("demo", folder / f"cut-{len(list(folder.iterdir()))}")
    yield run
    run.kill()


def test_demo_that_is_interrupted_leaves_nothing(run: Run) -> None:
    run.wait_for("$ kubectl apply")

    assert run.end(signal.SIGINT) == 130
    assert run.left_behind() == []


def test_demo_without_a_dispatcher_says_what_it_saw_and_fails(run: Run) -> None:
    run.wait_for("$ kubectl apply")
    os.kill(run.pid_of("dispatcher"), signal.SIGKILL)

    assert run.end() == 1
    failure = run.output.partition("this is not what should have happened: ")[2]
    assert failure.startswith("dispatcher ended with -9")
    assert "seen last: " in failure
    assert '"event": "leading"' in failure
    assert run.left_behind() == []


@pytest.mark.timeout(STORY_SECONDS + 60)
def test_demo_tells_its_story() -> None:
    assert_tells(
        "demo",
        f"KubeRay's operator {kuberay_operator.NEWEST.version}; Ray's dashboards are played",
        "$ kubectl apply -f examples/aw-raycluster-glue.yaml",
        "│ 2 running │ 1 of 3 ",
        "$ kubectl apply -f examples/aw-raycluster-glue-1.yaml",
        "│ Queued ",
        "there was no RayCluster, pod or service of raycluster-glue-1",
        "$ kubectl delete appwrapper raycluster-glue",
        "│ deleted ",
        "│ pods-running │ Dispatched  │ Running ",
        "│ released ",
        "│ blocked ",
        "By hand: `make dev`",
    )


@pytest.fixture
def dev(folder: Path) -> Iterator[Run]:
    """`make dev`, when it says that it is ready."""
    run = Run("dev", folder / "dev")
    try:
        run.wait_for("Ctrl-C ends all of it.", STORY_SECONDS)
        yield run
    finally:
        run.kill()


@pytest.mark.timeout(2 * STORY_SECONDS)
def test_dev_can_be_used_killed_and_started_again(dev: Run) -> None:
    assert all(line in dev.output for line in (dev.state / "env").read_text().splitlines())
    assert in_shell(dev, "kubectl get nodes -o name") == ["node/node-0", "node/node-1", "node/node-2"]
    assert in_shell(dev, "kubectl auth whoami -o jsonpath={.status.userInfo.username}") == ["admin"]
    assert in_shell(
        dev, 'psql -At "$DISPATCHER_DATABASE_URL" -c "SELECT count(*) FROM history.queue_now"'
    ) == ["0"]
    assert in_shell(dev, "for each in kubectl psql dispatcher kubectl-aw; do command -v $each; done") == [
        str(dev.state / "bin" / each) for each in ("kubectl", "psql", "dispatcher", "kubectl-aw")
    ]
    for user, home, other in (
        ("ada", "team-a", "team-b"),
        ("ben", "team-a", "team-b"),
        ("cleo", "team-b", "team-a"),
    ):
        assert as_user(dev, user, "auth whoami -o jsonpath={.status.userInfo.username}") == [user]
        assert as_user(dev, user, "config view --minify -o jsonpath={..namespace}") == [home]
        for may in ("create appwrappers", "create rayjobs", "get pods/log", "list nodes"):
            assert as_user(dev, user, f"auth can-i {may}") == ["yes"]
        for may in (
            "create rolebindings",
            "create resourcequotas",
            f"-n {other} get appwrappers",
            "-A get pods",
        ):
            assert as_user(dev, user, f"auth can-i {may} || true") == ["no"]
    sweep = CHECKOUT / "examples" / "afternoon" / "sweep.yaml"
    assert as_user(dev, "ada", f"aw submit {sweep}")[0] == "team-a/sweep submitted"
    assert as_user(dev, "ada", "aw wait sweep --for running")[-1] == "team-a/sweep Running on hub"
    assert as_user(dev, "ada", "aw logs sweep") == [LOG]

    assert dev.end(signal.SIGKILL) == -signal.SIGKILL
    dev.start()
    dev.wait_for("Ctrl-C ends all of it.", STORY_SECONDS)

    assert dev.end(signal.SIGTERM) == 0
    assert dev.left_behind() == []


def as_user(run: Run, user: str, arguments: str) -> list[str]:
    """Run kubectl as one of the users, and return the lines it prints."""
    return in_shell(run, f"KUBECONFIG={run.state / user}.kubeconfig kubectl {arguments}")


# --- `make demo-provisioning`, as somebody runs it: the story it tells, and that nothing is left of it -----


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


# --- `make demo-queues`, as somebody runs it: the story it tells, and that nothing is left of it -----------


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
