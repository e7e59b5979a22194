"""Webhooks of operators that run beside an API server, and not in its cluster.

An operator's configurations of webhooks name a Service, and on the testbed's planes a Service leads nowhere. So the API
server calls a URL of the loopback address, and trusts the CA of the certificate that the testbed made for the operator.
Only the address is changed, and what an operator's installation changes, too: the names, and the labels without which
a webhook does not see an object.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from testbed.client import ApiError, Client

Json = dict[str, Any]

REGISTRATIONS: Final = "/apis/admissionregistration.k8s.io/v1"
PLURALS: Final = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}

POD: Final[Json] = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
"""A pod template of objects that are only posted as a dry run."""


@dataclass(frozen=True, slots=True)
class Defaulted:
    """An object whose creation shows that the API server calls a webhook: it then has the field.

    `path` is where it is created, as a dry run; `field` is dotted.
    """

    path: str
    manifest: Mapping[str, Any]
    field: str


@dataclass(frozen=True, slots=True)
class Called:
    """Which webhooks of an operator are called: those of `resources`, or all without these.

    `labels` are the labels by resource without which an object is not shown to the webhook. `probe` tells when the API
    server calls them; without it, nothing waits for that.
    """

    resources: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    probe: Defaulted | None = None


@dataclass(frozen=True, slots=True)
class WebhookService:
    """Where the webhooks of an operator are served, and the PEM of the CA of its certificate."""

    operator: str
    port: int
    authority: str


def register(client: Client, path: Path, service: WebhookService, called: Called) -> None:
    """Has the API server call the webhooks that a file of an operator configures. Safe to repeat."""
    for found in yaml.safe_load_all(path.read_text()):
        configuration = rewritten(found, service, called)
        if configuration["webhooks"]:
            name = configuration["metadata"]["name"]
            client.apply(f"{REGISTRATIONS}/{PLURALS[configuration['kind']]}/{name}", configuration)


def is_defaulted(client: Client, called: Called) -> bool:
    """True once the API server calls the webhooks, so that the field has a value; also if no probe tells it."""
    if called.probe is None:
        return True
    try:
        created = client.request("POST", f"{called.probe.path}?dryRun=All", called.probe.manifest)
    except ApiError:
        return False
    found: Any = created
    for step in called.probe.field.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return bool(found)


def rewritten(found: Mapping[str, Any], service: WebhookService, called: Called) -> Json:
    """The configuration of an operator, with the address that leads to it."""
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": {"name": f"{service.operator}-{found['metadata']['name']}"},
        "webhooks": list(_webhooks(found, service, called)),
    }


def _webhooks(found: Mapping[str, Any], service: WebhookService, called: Called) -> Iterator[Json]:
    for webhook in found["webhooks"]:
        resources = {each for rule in webhook["rules"] for each in rule["resources"]}
        if called.resources and not resources & called.resources:
            continue
        address = _address(service, webhook["clientConfig"]["service"]["path"])
        labels = [called.labels[each] for each in sorted(resources & called.labels.keys())]
        yield {**webhook, "clientConfig": address, **_selected_by(labels)}


def _address(service: WebhookService, path: str) -> Json:
    return {
        "url": f"https://127.0.0.1:{service.port}{path}",
        "caBundle": b64encode(service.authority.encode()).decode(),
    }


def _selected_by(labels: list[str]) -> Json:
    if not labels:
        return {}
    return {"objectSelector": {"matchExpressions": [{"key": each, "operator": "Exists"} for each in labels]}}
