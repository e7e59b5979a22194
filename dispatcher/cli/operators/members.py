"""Member clusters: declared, changed and removed, each with the Secret of its kubeconfig.

Adding one checks and tries the request before it writes anything. The steps: read the hub, check the request, try the
kubeconfig, store it, declare the cluster. A step that fails leaves nothing that a later run would act on. A repetition
changes only the differences, which is how a kubeconfig is rotated. Secrets that a command creates have labels that say
so, and no other Secret is removed. The content of a Secret is never shown.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from dispatcher import errors
from dispatcher.api.clusters.membercluster import DEFAULT_SECRET_KEY, SecretKey, parse_member_cluster
from dispatcher.api.names import (
    CLUSTER_LABEL,
    FIELD_MANAGER,
    HUB_CLUSTER,
    MANAGER_LABEL,
    MEMBERS_PATH,
    PREFIX,
)
from dispatcher.api.spec_errors import SpecError, one_line
from dispatcher.cli.hub import Hub, explained
from dispatcher.cli.options import as_typed
from dispatcher.cli.query import run_coroutine
from dispatcher.kube import paths
from dispatcher.kube.api_calls import METADATA_LIST
from dispatcher.values import shown_without

if TYPE_CHECKING:
    from dispatcher.kube.kubeconfig import Connection

Json = dict[str, Any]
Say = Callable[[str], None]

_RIGHTS: Final = "docs/clusters.md says which rights a member has to give"


@shown_without("kubeconfig")
class Wanted(Struct, frozen=True):
    """The requested changes of a member; absent fields stay as they are. `anyway` overrides doubts about its uid."""

    name: str
    spec: Json = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    kubeconfig: bytes | None = None
    secret: str = ""
    anyway: bool = False


def find(hub: Hub, name: str) -> Json:
    """The MemberCluster of that name; raises `CommandFailed` if there is none."""
    found = hub.member(name)
    if found is None:
        raise errors.CommandFailed(missing(name))
    return found


def change(hub: Hub, found: Json, spec: Json, labels: Mapping[str, str] | None = None) -> Json:
    """Merge into the MemberCluster that was found; None takes a field away."""
    metadata = {"metadata": {"labels": dict(labels)}} if labels else {}
    return hub.merge(_path(found), found, {**metadata, "spec": spec})


def remove(hub: Hub, found: Json) -> None:
    """Delete the MemberCluster that was found."""
    with contextlib.suppress(errors.NotFound):
        hub.delete(_path(found), found)


def join(hub: Hub, namespace: str, wanted: Wanted, say: Say) -> None:
    """Apply the changes and report each step; `namespace` is the dispatcher's own.

    Raises `CommandFailed` or `SettingsError` before the first write.
    """
    found = hub.member(wanted.name)
    at = _secret_key(wanted, found)
    spec = {**wanted.spec, **({"kubeconfigSecretRef": {"name": at.name, "key": at.key}} if at else {})}
    _check(wanted.name, spec, found)
    if wanted.kubeconfig is not None and at is not None:
        from dispatcher.kube.kubeconfig import connection  # `cordon` and `drain` do not need it

        _try_out(hub, wanted, connection(wanted.kubeconfig), say)
        is_declared = found is not None and declared_secret(found) == at
        outcome = _store(hub, namespace, wanted.name, at, wanted.kubeconfig, is_declared=is_declared)
        say(f"Secret {namespace}/{at.name} {outcome}")
    if found is None:
        _declare(hub, wanted, spec, say)
        return
    changes = changed(found, change(hub, found, spec, wanted.labels))
    say(f"member cluster {wanted.name} " + (f"changed: {', '.join(changes)}" if changes else "unchanged"))


def missing(name: str) -> str:
    """Say that there is no MemberCluster of that name, and what to do."""
    if name == HUB_CLUSTER:
        return (
            "the hub is not declared: it takes every gang as long as there are no member clusters, and none once there "
            f"are. Declare it with: {as_typed('clusters add hub')}"
        )
    return f"there is no member cluster {name}. See those there are with: {as_typed('clusters list')}"


def clear(hub: Hub, namespace: str, cluster: str) -> list[str]:
    """Delete the Secrets that were made for this cluster, without reading them, and return their names."""
    selector = ",".join(f"{label}={value}" for label, value in _marks(cluster).items())
    listed = hub.client.get(_secrets(namespace), {"labelSelector": selector}, accept=METADATA_LIST)
    removed = []
    for each in listed.get("items") or ():
        name = each["metadata"]["name"]
        with contextlib.suppress(errors.NotFound):
            hub.delete(_secrets(namespace, name), each)
        removed.append(name)
    return removed


def changed(before: Json, after: Json) -> list[str]:
    """Name what differs between two states of a MemberCluster, as far as people write it."""
    old, new = ({"labels": each["metadata"].get("labels"), **each["spec"]} for each in (before, after))
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def declared_secret(found: Json) -> SecretKey | None:
    """Where a MemberCluster says that its kubeconfig is."""
    written = found["spec"].get("kubeconfigSecretRef")
    return SecretKey(written["name"], written.get("key", DEFAULT_SECRET_KEY)) if written else None


def doubts(name: str, uid: str, hub_uid: str, members: Iterable[Json]) -> list[str]:
    """Say what speaks against a member of that name being the cluster of that uid."""
    known = {each["metadata"]["name"]: (each.get("status") or {}).get("clusterUID") for each in members}
    found = []
    if uid == hub_uid:
        found.append(
            "the kubeconfig leads to the hub itself, which would be counted twice; the hub is declared with: "
            + as_typed("clusters add hub")
        )
    if known.get(name) not in (None, uid):
        found.append(
            f"the kubeconfig leads to cluster {uid}, but {name} is cluster {known[name]}, and nothing is created or "
            "deleted in another; add that under a name of its own"
        )
    same = sorted(other for other, its in known.items() if its == uid and other not in (name, HUB_CLUSTER))
    return [
        *found,
        *(f"the kubeconfig leads to a cluster that is a member already: {other}" for other in same),
    ]


def _secret_key(wanted: Wanted, found: Json | None) -> SecretKey | None:
    """Where the kubeconfig is to be; None if nothing is to change about that."""
    if wanted.kubeconfig is None and not wanted.secret:
        return None
    declared = declared_secret(found) if found else None
    name = wanted.secret or (declared.name if declared else f"cluster-{wanted.name}")
    return declared if declared and declared.name == name else SecretKey(name)


def _check(name: str, spec: Json, found: Json | None) -> None:
    if found is None and name != HUB_CLUSTER and "kubeconfigSecretRef" not in spec:
        raise errors.CommandFailed(
            f"{name} is no member cluster yet: say with --member-kubeconfig how it is reached"
        )
    try:
        parse_member_cluster(
            {"metadata": {"name": name, "uid": ""}, "spec": {**(found["spec"] if found else {}), **spec}}
        )
    except SpecError as error:
        raise errors.CommandFailed(str(error)) from error


def _try_out(hub: Hub, wanted: Wanted, to: Connection, say: Say) -> None:
    """Check that the kubeconfig leads to a cluster that may be this member."""
    for doubt in run_coroutine(_doubts_of(hub, wanted.name, to, say)):
        if not wanted.anyway:
            raise errors.CommandFailed(f"{doubt}. Nothing was written; --yes does it all the same")
        say(f"in spite of this: {doubt}")


async def _doubts_of(hub: Hub, name: str, to: Connection, say: Say) -> list[str]:
    from dispatcher.kube.discovery import cluster_uid
    from dispatcher.kube.user_client import AsyncUserClient, UserClient, access_to

    with UserClient(access_to(to)) as member:
        client = AsyncUserClient(member)
        with explained(to.server, _RIGHTS):
            try:
                version, uid = (await client.get("/version")).get("gitVersion"), await cluster_uid(client)
            except errors.Unavailable as error:
                return [one_line(f"{to.server} does not answer from here: {error}")]
    say(one_line(f"{to.server} answers: Kubernetes {version}, cluster {uid}"))
    return doubts(name, uid, await cluster_uid(AsyncUserClient(hub.client)), hub.members()["items"])


def _store(
    hub: Hub, namespace: str, cluster: str, at: SecretKey, kubeconfig: bytes, *, is_declared: bool
) -> str:
    """Have the Secret hold this kubeconfig and return, in a word, what became of it.

    A Secret that was not made for this cluster is changed only if the MemberCluster names it already.
    """
    path, data = _secrets(namespace, at.name), {at.key: base64.b64encode(kubeconfig).decode()}
    found = hub.find(path)
    if found is None:
        _create_secret(hub, namespace, _secret(cluster, at.name, data))
        return "created"
    if not (is_declared or _was_made_for(cluster, found)):
        raise errors.CommandFailed(
            f"the Secret {namespace}/{at.name} exists and was not made for {cluster}: nothing was written. "
            "Choose another name with --secret, or delete it"
        )
    if (found.get("data") or {}).get(at.key) == data[at.key]:
        return "unchanged"
    hub.merge(path, found, {"data": data})
    return "changed"


def _create_secret(hub: Hub, namespace: str, secret: Json) -> None:
    try:
        hub.create(_secrets(namespace), secret)
    except errors.NotFound as error:
        raise errors.CommandFailed(
            f"the hub has no namespace {namespace}. Say with --namespace where the dispatcher runs"
        ) from error


def _declare(hub: Hub, wanted: Wanted, spec: Json, say: Say) -> None:
    others = hub.members()["items"]
    metadata = {"name": wanted.name, "labels": dict(wanted.labels)}
    body = {"apiVersion": f"{PREFIX}/v1alpha1", "kind": "MemberCluster"}
    hub.create(MEMBERS_PATH, {**body, "metadata": metadata, "spec": spec})
    say(f"member cluster {wanted.name} created")
    if wanted.name == HUB_CLUSTER:
        say("The hub takes new gangs, beside the member clusters there are.")
    elif not others:
        say(
            "From now on the hub itself takes no new gangs. To have it take some, too: "
            + as_typed("clusters add hub")
        )


def _path(found: Json) -> str:
    return f"{MEMBERS_PATH}/{paths.segment(found['metadata']['name'])}"


def _secrets(namespace: str, name: str = "") -> str:
    collection = paths.collection("v1", "secrets", namespace)
    return f"{collection}/{paths.segment(name)}" if name else collection


def _marks(cluster: str) -> dict[str, str]:
    return {MANAGER_LABEL: FIELD_MANAGER, CLUSTER_LABEL: cluster}


def _was_made_for(cluster: str, secret: Json) -> bool:
    labels = secret["metadata"].get("labels") or {}
    return _marks(cluster).items() <= labels.items()


def _secret(cluster: str, name: str, data: Mapping[str, str]) -> Json:
    metadata = {"name": name, "labels": _marks(cluster)}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": dict(data)}
