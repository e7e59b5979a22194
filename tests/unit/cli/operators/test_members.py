"""`dispatcher clusters add`: what it checks before it writes, what it writes, and that it tells no secret."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from dispatcher.cli.operators.members import changed, doubts
from dispatcher.kube.kubeconfig import connection
from tests.commands import Ran, Run
from tests.fakes import FakeApiServer, Reply, answer, hang_up, refusal
from tests.unit.cli.wire import (
    EAST_UID,
    HUB_UID,
    MARKS,
    MEMBERS,
    SECRETS,
    TOKEN,
    Json,
    echoed,
    kube_system,
    member,
    members,
    merged,
    writes,
)

EAST = f"{MEMBERS}/east"
SECRET = f"{SECRETS}/cluster-east"
HUB_CLOSES = (
    "From now on the hub itself takes no new gangs. To have it take some, too: dispatcher clusters add hub\n"
)


@pytest.fixture
def new(hub: FakeApiServer) -> FakeApiServer:
    """A hub that takes a new member."""
    for path in (EAST, SECRET, f"{MEMBERS}/hub"):
        hub.on("GET", path, refusal(404, "NotFound"))
    for path in (MEMBERS, SECRETS):
        hub.on("POST", path, echoed)
    return hub


@pytest.fixture
def reduced(kubeconfig: Json) -> Json:
    """What is stored of the kubeconfig: the one context."""
    return {
        **kubeconfig,
        "contexts": [{"name": "east", "context": {"cluster": "east", "user": "hub"}}],
        "clusters": kubeconfig["clusters"][:1],
        "users": kubeconfig["users"][:1],
    }


def secret(data: object, name: str = "cluster-east", labels: Json | None = None) -> Json:
    """A Secret as it is created; with labels, as an API server has it."""
    metadata = {"name": name, "labels": MARKS}
    if labels is not None:
        metadata = {"name": name, "uid": "uid-of-secret", "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}


def declaration(name: str = "east", labels: Json | None = None, **spec: object) -> tuple[str, str, Json]:
    body = {"apiVersion": "dispatcher.codeflare.dev/v1alpha1", "kind": "MemberCluster"}
    return "POST", MEMBERS, {**body, "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def told(written: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """The writes, with kubeconfigs as what they say."""
    for _, path, body in written:
        if path.startswith(SECRETS):
            body["data"] = {
                key: yaml.safe_load(base64.b64decode(value)) for key, value in body["data"].items()
            }
    return written


def stored(document: object) -> str:
    return base64.b64encode(yaml.safe_dump(document).encode()).decode()


REF = {"name": "cluster-east", "key": "kubeconfig"}


async def test_cluster_is_tried_and_its_kubeconfig_stored_before_it_is_declared(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str, reduced: Json
) -> None:
    assert await run("add", "east", "--member-kubeconfig", file) == Ran(
        0,
        f"{east.url} answers: Kubernetes v1.36.3, cluster {EAST_UID}\n"
        "Secret queue/cluster-east created\n"
        "member cluster east created\n" + HUB_CLOSES,
    )
    assert told(writes(new)) == [
        ("POST", SECRETS, secret({"kubeconfig": reduced})),
        declaration(kubeconfigSecretRef=REF),
    ]
    assert [each.method for each in east.asked] == ["GET", "GET"]
    assert {each.headers["Authorization"] for each in east.asked} == {f"Bearer {TOKEN}"}


async def test_everything_that_can_be_said_is_written(run: Run, new: FakeApiServer, file: str) -> None:
    new.on("GET", MEMBERS, members(member("west")))
    new.on("GET", f"{SECRETS}/keys", refusal(404, "NotFound"))

    ran = await run(
        *("add", "east", "--member-kubeconfig", file, "--secret", "keys", "--namespace-policy", "Create"),
        *("--accepted-namespaces", "All"),
        *("--label", "gpu=a100", "--label", "example.com/area=", "--reserve", "cpu=2"),
        *("--reserve", "nvidia.com/gpu=1", "--on-lost", "requeue", "--grace", "60"),
    )

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[1:] == ["Secret queue/keys created", "member cluster east created"]
    assert writes(new)[1] == declaration(
        labels={"gpu": "a100", "example.com/area": ""},
        kubeconfigSecretRef={"name": "keys", "key": "kubeconfig"},
        namespacePolicy="Create",
        acceptedNamespaces="All",
        reserve={"cpu": "2", "nvidia.com/gpu": "1"},
        onClusterLost={"policy": "requeue", "graceSeconds": 60},
    )


async def test_kubeconfig_may_come_through_a_pipe(run: Run, new: FakeApiServer, kubeconfig: Json) -> None:
    ran = await run("add", "east", "--member-kubeconfig", "-", stdin=yaml.safe_dump(kubeconfig))

    assert (ran.code, len(writes(new))) == (0, 2)


async def test_context_is_chosen_and_no_other_is_stored(
    run: Run, new: FakeApiServer, kubeconfig: Json, reduced: Json
) -> None:
    text = yaml.safe_dump({**kubeconfig, "current-context": "west"})

    ran = await run("add", "east", "--member-kubeconfig", "-", "--member-context", "east", stdin=text)

    assert ran.code == 0
    assert told(writes(new))[0] == ("POST", SECRETS, secret({"kubeconfig": reduced}))


async def test_hub_is_declared_without_a_kubeconfig(run: Run, new: FakeApiServer) -> None:
    assert await run("add", "hub", "--reserve", "cpu=4") == Ran(
        0, "member cluster hub created\nThe hub takes new gangs, beside the member clusters there are.\n"
    )
    assert writes(new) == [declaration("hub", reserve={"cpu": "4"})]


async def test_secret_that_is_there_may_be_named(run: Run, new: FakeApiServer) -> None:
    assert await run("add", "east", "--secret", "keys") == Ran(
        0, "member cluster east created\n" + HUB_CLOSES
    )
    assert writes(new) == [declaration(kubeconfigSecretRef={"name": "keys", "key": "kubeconfig"})]


REFUSED = {
    "exec": ("west", 'kubeconfig.users["me"].user.exec: would run a program on the hub'),
    "no-such-context": ("north", 'kubeconfig.contexts: has no "north". Choose one of: "east", "west".'),
}


@pytest.mark.parametrize(("context", "said"), [pytest.param(*row, id=name) for name, row in REFUSED.items()])
async def test_kubeconfig_that_the_hub_would_not_use_is_not_stored(
    run: Run, new: FakeApiServer, file: str, context: str, said: str
) -> None:
    ran = await run("add", "east", "--member-kubeconfig", file, "--member-context", context)

    assert (ran.code, ran.out, writes(new)) == (1, "", [])
    assert ran.err.startswith(f"dispatcher: {said}")


async def test_new_cluster_needs_a_kubeconfig(run: Run, new: FakeApiServer) -> None:
    assert await run("add", "east", "--reserve", "cpu=2") == Ran(
        1, "", "dispatcher: east is no member cluster yet: say with --member-kubeconfig how it is reached\n"
    )
    assert writes(new) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["east", "--member-kubeconfig", "/nowhere"], "No such file"),
        (["east", "--member-context", "a"], "--member-context is one of a --member-kubeconfig"),
        (["hub", "--secret", "keys"], "hub is the cluster of the AppWrappers themselves"),
        (["east", "--secret", "keys", "--label", "gpu"], "'gpu' is not KEY=VALUE"),
        (["east", "--secret", "keys", "--label", "a b=c"], "'a b=c' is not KEY=VALUE"),
        (["east", "--secret", "keys", "--reserve", "cpu=lots"], "'cpu=lots' is not RESOURCE=QUANTITY"),
        (["east", "--secret", "keys", "--reserve", "cpu=-1"], "is negative"),
        (["east", "--secret", "keys", "--grace", "-1"], "Invalid value for '--grace'"),
        (["east", "--secret", "keys", "--on-lost", "evict"], "Invalid value for '--on-lost'"),
        ([], "NAME"),
    ],
)
async def test_impossible_arguments_are_a_usage_error(
    run: Run, hub: FakeApiServer, arguments: list[str], said: str
) -> None:
    ran = await run("add", *arguments)

    assert (ran.code, ran.out, hub.asked) == (2, "", [])
    assert said in " ".join(ran.err.split())


async def test_secrets_name_is_checked_before_anything_is_written(
    run: Run, new: FakeApiServer, file: str
) -> None:
    ran = await run("add", "east", "--member-kubeconfig", file, "--secret", "../pods")

    assert (ran.code, ran.out, writes(new)) == (1, "", [])
    assert ran.err.startswith("dispatcher: spec.kubeconfigSecretRef.name: must be the name of a Secret")


@pytest.mark.parametrize(
    ("path", "reply", "said"),
    [
        pytest.param(
            "/version",
            refusal(401, "Unauthorized", "Unauthorized"),
            "does not take the credentials: Unauthorized. docs/clusters.md says which rights a member has to give",
            id="revoked",
        ),
        pytest.param(
            "/api/v1/namespaces/kube-system",
            refusal(403, "Forbidden", 'namespaces "kube-system" is forbidden'),
            'does not allow it: namespaces "kube-system" is forbidden',
            id="no-rights",
        ),
    ],
)
async def test_cluster_that_turns_the_kubeconfig_away_is_not_added(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str, path: str, reply: Reply, said: str
) -> None:
    east.on("GET", path, reply)

    assert await run("add", "east", "--member-kubeconfig", file, "--yes") == Ran(
        1, "", f"dispatcher: {east.url} {said}\n"
    )
    assert writes(new) == []


@pytest.mark.parametrize("path", ["/version", "/api/v1/namespaces/kube-system"])
async def test_member_cannot_steer_the_terminal(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str, path: str
) -> None:
    hostile, said = "\x1b]0;hub\x07", ""
    for reply in (
        answer({"gitVersion": hostile, "metadata": {"uid": hostile}}),
        refusal(422, "Invalid", hostile),
    ):
        east.on("GET", path, reply)
        ran = await run("add", "east", "--member-kubeconfig", file)
        said += ran.out + ran.err
    assert "\\x1b]0;hub\\x07" in said
    assert "\x1b" not in said


async def test_cluster_that_does_not_answer_is_not_added(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str
) -> None:
    east.on("GET", "/version", hang_up)

    ran = await run("add", "east", "--member-kubeconfig", file)

    assert (ran.code, ran.out, writes(new)) == (1, "", [])
    assert ran.err.startswith(
        f"dispatcher: {east.url} does not answer from here: {east.url} closed the connection"
    )
    assert ran.err.endswith(". Nothing was written; --yes does it all the same\n")


async def test_cluster_that_only_the_hub_reaches_is_added_with_the_option_yes(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str
) -> None:
    east.on("GET", "/version", hang_up)

    ran = await run("add", "east", "--member-kubeconfig", file, "--yes")

    first, *others = ran.out.splitlines()
    assert (ran.code, ran.err, len(writes(new))) == (0, "", 2)
    assert first.startswith(f"in spite of this: {east.url} does not answer from here")
    assert others[:2] == ["Secret queue/cluster-east created", "member cluster east created"]


async def test_another_cluster_under_the_name_of_a_member_is_doubted(
    run: Run, new: FakeApiServer, file: str
) -> None:
    known = member(status={"clusterUID": "another"})
    new.on("GET", EAST, answer(known))
    new.on("GET", MEMBERS, members(known))

    ran = await run("add", "east", "--member-kubeconfig", file)

    assert (ran.code, writes(new)) == (1, [])
    assert ran.err == (
        f"dispatcher: the kubeconfig leads to cluster {EAST_UID}, but east is cluster another, and nothing is "
        "created or deleted in another; add that under a name of its own. Nothing was written; --yes does it all "
        "the same\n"
    )


ELSEWHERE = "the kubeconfig leads to a cluster that is a member already: west"
TWICE = (
    "the kubeconfig leads to the hub itself, which would be counted twice; the hub is declared with: "
    "dispatcher clusters add hub"
)


@pytest.mark.parametrize(
    ("uid", "known", "expected"),
    [
        pytest.param("new", [], [], id="new"),
        pytest.param("new", [member()], [], id="not-reached-so-far"),
        pytest.param("same", [member(status={"clusterUID": "same"})], [], id="the-same"),
        pytest.param("same", [member("west", status={"clusterUID": "same"})], [ELSEWHERE], id="two-names"),
        pytest.param(HUB_UID, [member("hub", status={"clusterUID": HUB_UID})], [TWICE], id="the-hub"),
    ],
)
def test_doubts_about_which_cluster_it_is(uid: str, known: list[Json], expected: list[str]) -> None:
    assert doubts("east", uid, HUB_UID, known) == expected


@pytest.fixture
def declared(hub: FakeApiServer, reduced: Json) -> FakeApiServer:
    """A hub with the member `east`, whose Secret was made by `add`."""
    found = member(reserve={"cpu": "2"}, status={"clusterUID": EAST_UID})
    kept = secret({"kubeconfig": stored(reduced)}, labels=MARKS)
    hub.on("GET", EAST, answer(found))
    hub.on("PATCH", EAST, merged(found))
    hub.on("GET", MEMBERS, members(found))
    hub.on("GET", SECRET, answer(kept))
    hub.on("PATCH", SECRET, merged(kept))
    return hub


def change(spec: Json, **metadata: object) -> tuple[str, str, Json]:
    return "PATCH", EAST, {"metadata": {"uid": "uid-of-member-east", **metadata}, "spec": spec}


async def test_adding_the_same_again_changes_nothing(
    run: Run, declared: FakeApiServer, east: FakeApiServer, file: str
) -> None:
    assert await run("add", "east", "--member-kubeconfig", file) == Ran(
        0,
        f"{east.url} answers: Kubernetes v1.36.3, cluster {EAST_UID}\n"
        "Secret queue/cluster-east unchanged\n"
        "member cluster east unchanged\n",
    )
    assert writes(declared) == [change({"kubeconfigSecretRef": REF})]


async def test_kubeconfig_is_rotated_under_the_uid_that_was_looked_at(
    run: Run, declared: FakeApiServer, kubeconfig: Json, reduced: Json
) -> None:
    user = {"name": "hub", "user": {"token": "another"}}
    text = yaml.safe_dump({**kubeconfig, "users": [user]})

    ran = await run("add", "east", "--member-kubeconfig", "-", stdin=text)

    assert ran.out.splitlines()[1:] == ["Secret queue/cluster-east changed", "member cluster east unchanged"]
    rotated = {"kubeconfig": {**reduced, "users": [user]}}
    assert told(writes(declared)) == [
        ("PATCH", SECRET, {"metadata": {"uid": "uid-of-secret"}, "data": rotated}),
        change({"kubeconfigSecretRef": REF}),
    ]


async def test_kubeconfig_is_rotated_where_it_was_declared_to_be(
    run: Run, declared: FakeApiServer, file: str, reduced: Json
) -> None:
    ref = {"name": "keys", "key": "admin"}
    found = member(kubeconfigSecretRef=ref)
    theirs = secret({"admin": "b2xk"}, "keys", labels={})
    declared.on("GET", EAST, answer(found))
    declared.on("PATCH", EAST, merged(found))
    declared.on("GET", f"{SECRETS}/keys", answer(theirs))
    declared.on("PATCH", f"{SECRETS}/keys", merged(theirs))

    ran = await run("add", "east", "--member-kubeconfig", file)

    assert ran.out.splitlines()[1:] == ["Secret queue/keys changed", "member cluster east unchanged"]
    assert told(writes(declared)) == [
        ("PATCH", f"{SECRETS}/keys", {"metadata": {"uid": "uid-of-secret"}, "data": {"admin": reduced}}),
        change({"kubeconfigSecretRef": ref}),
    ]


async def test_absent_options_change_nothing_and_changed_fields_are_named(
    run: Run, declared: FakeApiServer
) -> None:
    assert await run("add", "east", "--reserve", "memory=1Gi", "--label", "gpu=a100", "--grace", "60") == Ran(
        0, "member cluster east changed: labels, onClusterLost, reserve\n"
    )
    assert writes(declared) == [
        change({"reserve": {"memory": "1Gi"}, "onClusterLost": {"graceSeconds": 60}}, labels={"gpu": "a100"})
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (member(), member(status={"running": 1}), []),
        (member(), member(cordoned=True), ["cordoned"]),
        (member(cordonReason="x"), member(labels={"a": "b"}), ["cordonReason", "labels"]),
    ],
)
def test_changes_are_what_people_write(before: Json, after: Json, expected: list[str]) -> None:
    assert changed(before, after) == expected


async def test_secret_that_others_made_for_this_member_is_kept_current_and_stays_theirs(
    run: Run, declared: FakeApiServer, file: str
) -> None:
    theirs = secret({"kubeconfig": "b2xk", "note": "b3Vycw=="}, labels={})
    declared.on("GET", SECRET, answer(theirs))

    ran = await run("add", "east", "--member-kubeconfig", file)

    assert (ran.code, ran.out.splitlines()[1]) == (0, "Secret queue/cluster-east changed")
    _, path, body = writes(declared)[0]
    assert (path, body["metadata"], list(body["data"])) == (SECRET, {"uid": "uid-of-secret"}, ["kubeconfig"])


@pytest.mark.parametrize("labels", [{}, {**MARKS, "dispatcher.codeflare.dev/cluster": "west"}])
async def test_secret_of_something_else_is_not_written_over(
    run: Run, new: FakeApiServer, file: str, labels: Json
) -> None:
    new.on("GET", SECRET, answer(secret({"password": "eA=="}, labels=labels)))

    ran = await run("add", "east", "--member-kubeconfig", file)

    assert (ran.code, writes(new)) == (1, [])
    assert ran.err == (
        "dispatcher: the Secret queue/cluster-east exists and was not made for east: nothing was written. Choose "
        "another name with --secret, or delete it\n"
    )


async def test_namespace_that_is_not_there_is_said(run: Run, new: FakeApiServer, file: str) -> None:
    new.on("POST", "/api/v1/namespaces/elsewhere/secrets", refusal(404, "NotFound"))
    new.on("GET", "/api/v1/namespaces/elsewhere/secrets/cluster-east", refusal(404, "NotFound"))

    ran = await run("add", "east", "--member-kubeconfig", file, "--namespace", "elsewhere")

    assert ran.err == (
        "dispatcher: the hub has no namespace elsewhere. Say with --namespace where the dispatcher runs\n"
    )


async def test_no_output_of_add_contains_a_secret(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str
) -> None:
    """Whatever goes wrong on the way, at whichever of the servers."""
    failures = [
        (east, "GET", "/version"),
        (east, "GET", "/api/v1/namespaces/kube-system"),
        (new, "POST", SECRETS),
        (new, "POST", MEMBERS),
        (new, "GET", MEMBERS),
    ]
    said = [await run("add", "east", "--member-kubeconfig", file)]
    for server, method, path in failures:
        for reply in (hang_up, refusal(422, "Invalid")):
            server.on(method, path, reply)
            said.append(await run("add", "east", "--member-kubeconfig", file))

    assert {ran.code for ran in said[1:]} == {1}
    assert not [ran for ran in said if TOKEN in ran.out + ran.err or stored(TOKEN) in ran.out + ran.err]


async def test_stored_kubeconfig_can_be_read_by_the_hub(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str
) -> None:
    await run("add", "east", "--member-kubeconfig", file)

    content = base64.b64decode(writes(new)[0][2]["data"]["kubeconfig"])
    assert (connection(content).server, connection(content).token) == (east.url, TOKEN)


async def test_same_cluster_as_the_hub_is_doubted(
    run: Run, new: FakeApiServer, east: FakeApiServer, file: str
) -> None:
    east.on("GET", "/api/v1/namespaces/kube-system", kube_system(HUB_UID))

    ran = await run("add", "east", "--member-kubeconfig", file)

    assert (ran.code, writes(new)) == (1, [])
    assert ran.err.startswith(f"dispatcher: {TWICE}. Nothing was written")
