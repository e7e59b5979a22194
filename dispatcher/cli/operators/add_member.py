"""Adds a member cluster or changes it: checks and tries the request before it writes anything.

The steps: read the hub, check the request, try the kubeconfig, store it, declare the cluster. A step that fails leaves
nothing that a later run would act on. A repetition changes only the differences, which is how a kubeconfig is rotated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from dispatcher import errors
from dispatcher.api.membercluster import DEFAULT_SECRET_KEY, SecretKey, parse_member_cluster
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.spec_errors import SpecError, one_line
from dispatcher.cli.operators.hub_client import HubClient, explained
from dispatcher.cli.options import as_typed
from dispatcher.kube.api_calls import Json
from dispatcher.values import shown_without

if TYPE_CHECKING:
    from dispatcher.kube.kubeconfig import Connection

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


async def join(hub: HubClient, wanted: Wanted, say: Say) -> None:
    """Apply the changes and report each step; raises `CommandFailed` or `SettingsError` before the first write."""
    found = await hub.find(wanted.name)
    at = _secret_key(wanted, found)
    spec = {**wanted.spec, **({"kubeconfigSecretRef": {"name": at.name, "key": at.key}} if at else {})}
    _check(wanted.name, spec, found)
    if wanted.kubeconfig is not None and at is not None:
        from dispatcher.kube.kubeconfig import (
            connection,
        )  # cordon and drain use this module, and do not need it

        await _try_out(hub, wanted, connection(wanted.kubeconfig), say)
        is_declared = found is not None and declared_secret(found) == at
        outcome = await hub.store(wanted.name, at, wanted.kubeconfig, is_declared=is_declared)
        say(f"Secret {hub.namespace}/{at.name} {outcome}")
    if found is None:
        await _declare(hub, wanted, spec, say)
        return
    changes = changed(found, await hub.change(found, spec, wanted.labels))
    say(f"member cluster {wanted.name} " + (f"changed: {', '.join(changes)}" if changes else "unchanged"))


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


async def _try_out(hub: HubClient, wanted: Wanted, to: Connection, say: Say) -> None:
    """Check that the kubeconfig leads to a cluster that may be this member."""
    for doubt in await _doubts_of(hub, wanted.name, to, say):
        if not wanted.anyway:
            raise errors.CommandFailed(f"{doubt}. Nothing was written; --yes does it all the same")
        say(f"in spite of this: {doubt}")


async def _doubts_of(hub: HubClient, name: str, to: Connection, say: Say) -> list[str]:
    from dispatcher.kube.client import ClusterClient
    from dispatcher.kube.discovery import cluster_uid

    async with ClusterClient.of(to) as client:
        with explained(to.server, _RIGHTS):
            try:
                version, uid = (await client.get("/version")).get("gitVersion"), await cluster_uid(client)
            except errors.Unavailable as error:
                return [one_line(f"{to.server} does not answer from here: {error}")]
    say(one_line(f"{to.server} answers: Kubernetes {version}, cluster {uid}"))
    return doubts(name, uid, await cluster_uid(hub.client), (await hub.members())["items"])


async def _declare(hub: HubClient, wanted: Wanted, spec: Json, say: Say) -> None:
    others = (await hub.members())["items"]
    await hub.declare(wanted.name, wanted.labels, spec)
    say(f"member cluster {wanted.name} created")
    if wanted.name == HUB_CLUSTER:
        say("The hub takes new gangs, beside the member clusters there are.")
    elif not others:
        say(
            "From now on the hub itself takes no new gangs. To have it take some, too: "
            + as_typed("clusters add hub")
        )
