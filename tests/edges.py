"""Every edge where text of others enters: what a hostile text becomes of in the dispatcher, by the name of the edge."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from unittest.mock import AsyncMock, Mock

import orjson

from dispatcher import errors
from dispatcher.api.annotations import submitter_of
from dispatcher.api.names import (
    CLUSTER_SELECTOR,
    GROUPS_ANNOTATION,
    UID_LABEL,
    USER_ANNOTATION,
)
from dispatcher.api.selector import selector_of
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.members.member import AnotherCluster, InvalidMember, Unlisted, closed_for
from dispatcher.controller.members.member import decode as decode_member
from dispatcher.core.intake.status_end import end_in_status
from dispatcher.core.kinds import drift
from dispatcher.core.kinds.built_in import ROWS
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.records.requirements import ANYWHERE
from dispatcher.kube.api_calls import one_object, refusal
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.kubeconfig import connection
from dispatcher.kube.objects.anchors import _found as anchor_found
from dispatcher.kube.objects.appwrappers import decode
from dispatcher.kube.objects.nodes import decode_node, decode_pod
from dispatcher.kube.objects.object_client import ObjectClient
from tests.builders import make_appwrapper, make_metadata, make_pod, make_ref

Json = dict[str, Any]
T = TypeVar("T")
Edge = Callable[[str], list[str]]
"""From a hostile text to all text that is kept of it."""


def _status_of_an_api_server(text: str) -> list[str]:
    body = _json({"kind": "Status", "message": text, "reason": text})
    found = [_refused(status, body) for status in (400, 403, 404, 409, 410, 422, 429, 500)]
    return [str(error) for error in found] + [str(getattr(error, "reason", "")) for error in found]


def _page_of_a_proxy(text: str) -> list[str]:
    return [str(_refused(502, text.encode(errors="surrogatepass")))]


def _refused(status: int, body: bytes) -> errors.ClusterError:
    return refusal(("GET", "/api"), status, "Bad", {}, body)


def _error_of_tls_or_the_system(text: str) -> list[str]:
    return [str(errors.Unavailable(f"GET /: OSError: {text}"))]


def _why_a_member_is_closed(text: str) -> list[str]:
    kinds = (errors.Unavailable, errors.Forbidden, errors.Throttled, errors.SettingsError, AnotherCluster)
    return [closed_for(kind(text)).message for kind in (*kinds, Unlisted)]


def _condition_of_a_pod(text: str) -> list[str]:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**said, "message": text, "lastTransitionTime": text}]}
    pod = decode_pod({**make_pod("p", node=""), "status": status}).pod
    found = pod.unscheduled
    return [found.message, found.since, found.pod] if found else []


def _names_in_a_pod(text: str) -> list[str]:
    view = decode_pod(make_pod("p", node=text, of=text))
    return [view.pod.node, view.claimed_by or ""]


def _node(text: str) -> list[str]:
    taint = {"key": text, "value": text, "effect": text}
    raw = {
        "metadata": {"name": text, "uid": "u"},
        "spec": {"taints": [taint]},
        "status": {"allocatable": {text: 1}},
    }
    node = decode_node(raw)
    return [
        node.name,
        *node.allocatable,
        *(part for each in node.taints for part in (each.key, each.value, each.effect)),
    ]


def _object_that_failed(text: str) -> list[str]:
    condition = {"type": "Failed", "status": "True", "reason": text, "message": text}
    return [BUILT_IN.state_of("", "Pod", {"status": {"conditions": [condition]}}).message]


def _object_of_any_kind_that_ended(text: str) -> list[str]:
    said = {"reason": text, "message": text}
    conditions = [
        {"type": "ReplicaFailure", "status": "True", **said},
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": text},
        {"type": "Ready", "status": "False", "reason": "ValidationFailed", "message": text},
    ]
    exited = {"name": text, "state": {"terminated": {"exitCode": 1, "reason": text}}}
    failed = {"phase": "Failed", "containerStatuses": [exited], "conditions": conditions}
    statuses: list[Json] = [
        {**failed, **said},
        {**failed, "state": {"phase": "Aborted", **said}},
        {"jobDeploymentStatus": "Failed", **said},
        {"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED", **said},
        {"jobDeploymentStatus": "Complete", "jobStatus": "FAILED", **said},
    ]
    return [
        BUILT_IN.state_of(row.group, row.kind, {"status": status}).message
        for row in ROWS
        if row.status
        for status in statuses
    ]


def _warning_about_an_object(text: str) -> list[str]:
    """The words of an Event, which say why no pod came."""
    event = {
        "metadata": {"name": "e"},
        "reason": text,
        "message": text,
        "lastTimestamp": text,
        "eventTime": text,
    }
    client = Mock(get=AsyncMock(return_value={"metadata": {}, "items": [event, {**event, "series": text}]}))
    return [_at_once(ObjectClient(client, Discovery(client)).newest_warning(make_ref()))]


def _edited_object(text: str) -> list[str]:
    written = {"spec": {text: text, "env": [{"name": text, "value": "a"}]}, text: {text: "a"}}
    found = {"spec": {text: {text: text}, "env": [{"name": text, "value": text}]}, text: {text: "b"}}
    return [drift.message([(make_ref(), drift.edited(written, found, {}))])]


def _kubeconfig(text: str) -> list[str]:
    """Written as it is, and with escapes."""
    cluster = {"server": text, "tls-server-name": text, "proxy-url": text, "certificate-authority-data": text}
    context = {"cluster": text, "user": text}
    parts = {
        "clusters": [{"name": text, "cluster": cluster}],
        "users": [{"name": text, "user": {"token": text, "client-certificate-data": text}}],
        "contexts": [{"name": text, "context": context}],
    }
    missing = {"contexts": [{"name": "c", "context": context}], "current-context": "c"}
    documents = [{**parts, "current-context": text}, {**parts, "current-context": "c"}, missing, {text: text}]
    written = [json.dumps(each, ensure_ascii=escaped) for each in documents for escaped in (True, False)]
    found = []
    for each in (text, *written):
        try:
            found.append(connection(each.encode(errors="surrogatepass")).server)
        except errors.SettingsError as error:
            found.append(str(error))
    return found


def _anchor(text: str) -> list[str]:
    metadata = {
        "name": anchor_name("uid-of-aw", 1),
        "namespace": "default",
        "uid": "u",
        "labels": {UID_LABEL: "uid-of-aw"},
        "creationTimestamp": "2026-11-20T09:00:00Z",
    }
    odd: list[Json] = [
        {"name": text},
        {"name": f"{metadata['name']}{text}"},
        {"name": anchor_name(text, 1), "labels": {UID_LABEL: text}},
        {"namespace": text, "uid": text},
        {"creationTimestamp": text},
    ]
    found = [anchor_found({**metadata, **each}) for each in odd]
    return [part for each in found if each for part in (each.namespace, each.name, each.uid, each.appwrapper)]


def _kind_that_is_served(text: str) -> list[str]:
    listed = [{"name": name, "kind": "Odd", "namespaced": True, "verbs": [text]} for name in ("odds", text)]
    discovery = Discovery(Mock(get=AsyncMock(return_value={"resources": listed}), check_ready=AsyncMock()))
    found = _at_once(discovery.find("v1", "Odd"))
    try:
        _at_once(discovery.find("v1", text))
    except errors.ClusterError as error:
        return [found.plural, found.path("default", "name"), str(error)]
    return [found.plural, found.path("default", "name")]


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


def _uid_in_an_answer(text: str) -> list[str]:
    try:
        return [str(one_object({"metadata": {"uid": text}}, "/")["metadata"]["uid"])]
    except errors.ClusterError as error:
        return [str(error)]


def _end_in_a_status(text: str) -> list[str]:
    condition = {"type": "Failed", "status": "True", "reason": text, "message": text}
    status = {"state": "Failed", "conditions": [condition], "keptUntil": text}
    told = end_in_status(decode(make_appwrapper(status=status)).status)
    return [told.reason, told.message, str(told.kept_until)] if told else []


def _submitter(text: str) -> list[str]:
    found = submitter_of({USER_ANNOTATION: text, GROUPS_ANNOTATION: f"{text}\n{text}"})
    return [found.user, *found.groups]


def _selector(text: str) -> list[str]:
    try:
        return [str(selector_of({CLUSTER_SELECTOR: text}, CLUSTER_SELECTOR))]
    except SpecError as error:
        return [str(error)]


def _member(text: str) -> list[str]:
    reference = {"kubeconfigSecretRef": {"name": "s"}}
    raw = {
        "metadata": make_metadata("east"),
        "spec": {**reference, "cordonReason": text, "reserve": {text: text}},
    }
    found = decode_member(raw)
    said = [found.message] if isinstance(found, InvalidMember) else [found.cordon_reason]
    odd = decode_member({**raw, "spec": {"kubeconfigSecretRef": {"name": text}, text: text}})
    return said + ([odd.message] if isinstance(odd, InvalidMember) else [])


def _name_that_is_taken(text: str) -> list[str]:
    return [message for _, message in ANYWHERE.without("east", text).ruled_out]


def _json(value: object) -> bytes:
    """As a server might send it: half of a surrogate pair makes it no JSON at all."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return repr(value).encode(errors="surrogatepass")


EDGES: Final[dict[str, Edge]] = {
    "status-of-an-api-server": _status_of_an_api_server,
    "page-of-a-proxy": _page_of_a_proxy,
    "error-of-tls-or-the-system": _error_of_tls_or_the_system,
    "why-a-member-is-closed": _why_a_member_is_closed,
    "condition-of-a-pod": _condition_of_a_pod,
    "names-in-a-pod": _names_in_a_pod,
    "node": _node,
    "object-that-failed": _object_that_failed,
    "object-of-any-kind-that-ended": _object_of_any_kind_that_ended,
    "warning-about-an-object": _warning_about_an_object,
    "edited-object": _edited_object,
    "kubeconfig": _kubeconfig,
    "anchor": _anchor,
    "kind-that-is-served": _kind_that_is_served,
    "uid-in-an-answer": _uid_in_an_answer,
    "end-in-a-status": _end_in_a_status,
    "submitter": _submitter,
    "selector": _selector,
    "member": _member,
    "name-that-is-taken": _name_that_is_taken,
}

NASTY: Final = (
    "\0",
    "a\0b" * 2000,
    "\ud800",
    "line\nbreak\r\n\x1b[31mred",
    "\u202eright to left\u2066",
    "x" * 2_000_000,
    "é\U0001f600" * 5000,
    '"\\u0000"',
    "",
)
"""Texts that have broken something somewhere."""
