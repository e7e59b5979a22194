"""Every edge where text of others enters: what a hostile text becomes of in the dispatcher, by the name of the edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import Mock

import orjson

from dispatcher import errors
from dispatcher.api.mistakes import SpecError
from dispatcher.api.names import (
    CLUSTER_SELECTOR,
    GROUPS_ANNOTATION,
    USER_ANNOTATION,
)
from dispatcher.api.selector import selector_of
from dispatcher.api.submitter import submitter_of
from dispatcher.controller.admission import told_end
from dispatcher.controller.fleet import Mistaken
from dispatcher.controller.fleet import _decode as decode_member
from dispatcher.controller.member import AnotherCluster, Unlisted, why
from dispatcher.core.choice import ANYWHERE
from dispatcher.core.endings import state_of
from dispatcher.kube.answers import one_object
from dispatcher.kube.appwrappers import decode
from dispatcher.kube.client import _refusal as refusal_of
from dispatcher.kube.nodes import decode_node, decode_pod
from tests.builders import make_appwrapper, make_metadata, make_pod

Json = dict[str, Any]
Edge = Callable[[str], list[str]]
"""From a hostile text to all text that is kept of it."""


def _status_of_an_api_server(text: str) -> list[str]:
    body = _json({"kind": "Status", "message": text, "reason": text})
    found = [_refused(status, body) for status in (400, 403, 404, 409, 410, 422, 429, 500)]
    return [str(error) for error in found] + [str(getattr(error, "reason", "")) for error in found]


def _page_of_a_proxy(text: str) -> list[str]:
    return [str(_refused(502, text.encode(errors="surrogatepass")))]


def _refused(status: int, body: bytes) -> errors.ClusterError:
    return refusal_of("GET", "/api", Mock(status=status, reason="Bad", headers={}), body)


def _error_of_tls_or_the_system(text: str) -> list[str]:
    return [str(errors.Unavailable(f"GET /: OSError: {text}"))]


def _why_a_member_is_closed(text: str) -> list[str]:
    kinds = (errors.Unavailable, errors.Forbidden, errors.Throttled, errors.SettingsError, AnotherCluster)
    return [why(kind(text)).message for kind in (*kinds, Unlisted)]


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
    return [state_of("", "Pod", {"status": {"conditions": [condition]}}).message]


def _uid_in_an_answer(text: str) -> list[str]:
    try:
        return [str(one_object({"metadata": {"uid": text}}, "/")["metadata"]["uid"])]
    except errors.ClusterError as error:
        return [str(error)]


def _end_in_a_status(text: str) -> list[str]:
    condition = {"type": "Failed", "status": "True", "reason": text, "message": text}
    told = told_end(decode(make_appwrapper(status={"state": "Failed", "conditions": [condition]})))
    return [told.reason, told.message] if told else []


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
    said = [found.message] if isinstance(found, Mistaken) else [found.cordon_reason]
    odd = decode_member({**raw, "spec": {"kubeconfigSecretRef": {"name": text}, text: text}})
    return said + ([odd.message] if isinstance(odd, Mistaken) else [])


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
