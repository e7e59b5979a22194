"""The namespace to which `clusters add` writes: that of the dispatcher, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from dispatcher import errors
from dispatcher.cli.hub import Hub
from dispatcher.cli.operators.own_namespace import BINDING, own_namespace
from dispatcher.cli.options import HubOptions
from tests.commands import Run
from tests.fakes import FakeApiServer, Reply, answer, refusal
from tests.unit.cli.wire import MEMBERS, echoed, members, writes

USUAL = "/apis/apps/v1/namespaces/appwrapper-dispatcher/deployments/dispatcher"
EAST = f"{MEMBERS}/east"


def bound(*namespaces: str) -> Reply:
    """The binding of the rights of dispatchers in these namespaces."""
    if not namespaces:
        return refusal(404, "NotFound")
    account = {"kind": "ServiceAccount", "name": "dispatcher"}
    return answer({"subjects": [{**account, "namespace": each} for each in namespaces]})


@pytest.fixture
def ask(run: Run, hub: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `dispatcher clusters …` where no variable names a namespace."""
    monkeypatch.delenv("DISPATCHER_NAMESPACE")
    hub.on("GET", EAST, refusal(404, "NotFound"))
    hub.on("POST", MEMBERS, echoed)
    return run


NONE_SEEN = "no rights of a dispatcher can be seen on this hub, so its namespace is not known"
SEVERAL = "dispatchers run in several namespaces of this hub: a, b. Say with --namespace"
ELSEWHERE = (
    "the dispatcher of this hub runs in namespace gpu, and reads no Secret of wrong: nothing was written"
)


@pytest.mark.parametrize(
    ("listed", "given", "pod", "expected"),
    [
        pytest.param(["gpu"], "", "", "gpu", id="of-its-account"),
        pytest.param(["gpu"], "", "tools", "gpu", id="of-its-account-and-not-of-this-pod"),
        pytest.param(["a", "b"], "", "b", "b", id="of-this-pod-among-several"),
        pytest.param([], "", "gpu", "gpu", id="of-this-pod-alone"),
        pytest.param([], "gpu", "", "gpu", id="given-and-outside-of-the-cluster"),
        pytest.param(["gpu"], "gpu", "", "gpu", id="given-and-right"),
    ],
)
async def test_namespace_is_that_of_the_dispatcher(
    hub: FakeApiServer, run: Run, tmp_path: Path, listed: Sequence[str], given: str, pod: str, expected: str
) -> None:
    hub.on("GET", BINDING, bound(*listed))
    assert await _found(hub, tmp_path, given, pod) == expected


@pytest.mark.parametrize(
    ("listed", "given", "said"),
    [
        pytest.param([], "", NONE_SEEN, id="none"),
        pytest.param(["a", "b"], "", SEVERAL, id="several"),
        pytest.param(["gpu"], "wrong", ELSEWHERE, id="given-and-wrong"),
    ],
)
async def test_namespace_that_is_not_known_is_refused(
    hub: FakeApiServer, run: Run, tmp_path: Path, listed: Sequence[str], given: str, said: str
) -> None:
    hub.on("GET", BINDING, bound(*listed))
    with pytest.raises(errors.CommandFailed, match=said):
        await _found(hub, tmp_path, given, "")


async def test_label_that_a_tenant_writes_chooses_no_namespace(
    hub: FakeApiServer, run: Run, tmp_path: Path
) -> None:
    labelled = {
        "name": "d",
        "namespace": "team",
        "labels": {"app.kubernetes.io/name": "appwrapper-dispatcher"},
    }
    hub.on("GET", "/apis/apps/v1/deployments", answer({"items": [{"metadata": labelled}]}))
    hub.on("GET", BINDING, bound())
    with pytest.raises(errors.CommandFailed, match=NONE_SEEN):
        await _found(hub, tmp_path, "", "")
    assert await _found(hub, tmp_path, "tools", "") == "tools"


async def test_wrong_namespace_is_taken_from_a_person_who_insists(
    hub: FakeApiServer, run: Run, tmp_path: Path
) -> None:
    hub.on("GET", BINDING, bound("gpu"))
    assert await _found(hub, tmp_path, "wrong", "", anyway=True) == "wrong"


@pytest.mark.parametrize(
    ("usual", "expected"), [(answer({}), "appwrapper-dispatcher"), (refusal(404, "NotFound"), "tools")]
)
async def test_operator_of_one_namespace_need_not_see_the_others(
    hub: FakeApiServer, run: Run, tmp_path: Path, usual: Reply, expected: str
) -> None:
    hub.on("GET", BINDING, refusal(403, "Forbidden"))
    hub.on("GET", USUAL, usual)
    assert await _found(hub, tmp_path, "", "tools") == expected


NOT_THERE = "no Deployment dispatcher is in namespace ours, and .*nothing was written"


@pytest.mark.parametrize(
    ("deployment", "anyway", "said"),
    [
        pytest.param(answer({}), False, "", id="there"),
        pytest.param(refusal(403, "Forbidden"), False, "", id="not-to-be-seen"),
        pytest.param(refusal(404, "NotFound"), False, NOT_THERE, id="missing"),
        pytest.param(refusal(404, "NotFound"), True, "", id="missing-and-insisted-on"),
    ],
)
async def test_given_namespace_is_checked_by_its_deployment_where_the_rights_cannot_be_read(
    hub: FakeApiServer, run: Run, tmp_path: Path, deployment: Reply, anyway: bool, said: str
) -> None:
    hub.on("GET", BINDING, refusal(403, "Forbidden"))
    hub.on("GET", USUAL, refusal(403, "Forbidden"))
    hub.on("GET", "/apis/apps/v1/namespaces/ours/deployments/dispatcher", deployment)
    with pytest.raises(errors.CommandFailed, match=said) if said else nullcontext():
        assert await _found(hub, tmp_path, "ours", "", anyway=anyway) == "ours"


async def _found(hub: FakeApiServer, folder: Path, given: str, pod: str, *, anyway: bool = False) -> str:
    """The namespace on this hub, from a pod of the namespace `pod` if that is not empty."""
    path = folder / "namespace"
    if pod:
        path.write_text(f"{pod}\n")

    def asked() -> str:
        with Hub(HubOptions()) as commands_hub:
            return own_namespace(commands_hub, given, anyway=anyway, pod_namespace=path)

    return await asyncio.to_thread(asked)


async def test_nothing_is_written_before_the_namespace_is_known(
    ask: Run, hub: FakeApiServer, file: str
) -> None:
    hub.on("GET", BINDING, bound())
    ran = await ask("add", "east", "--member-kubeconfig", file)
    assert (ran.code, ran.out, writes(hub)) == (1, "", [])
    assert NONE_SEEN in ran.err


async def test_hub_itself_needs_no_secret_and_so_no_namespace(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", f"{MEMBERS}/hub", refusal(404, "NotFound"))
    ran = await ask("add", "hub")
    assert (ran.code, ran.err, hub.requests("GET", BINDING)) == (0, "", [])


async def test_member_is_removed_although_the_place_of_its_secret_is_not_known(
    ask: Run, hub: FakeApiServer
) -> None:
    found = {
        "metadata": {"name": "east", "uid": "u"},
        "spec": {"kubeconfigSecretRef": {"name": "cluster-east", "key": "kubeconfig"}},
    }
    hub.on("GET", EAST, answer(found))
    hub.on("DELETE", EAST, answer({}))
    hub.on("GET", MEMBERS, members(found))
    ran = await ask("remove", "east")
    assert (ran.code, ran.out) == (0, "member cluster east removed\n")
    assert " ".join(ran.err.split()).startswith(f"Secret cluster-east is left: {NONE_SEEN}")
