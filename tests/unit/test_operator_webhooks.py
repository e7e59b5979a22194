"""Webhooks of operators are called at the loopback address, and only for the objects that they are for."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.batch_operators import OPERATORS
from testbed.built_operators import BuiltOperator
from testbed.certificates import make_webhook_certificate
from testbed.operator_webhooks import Called, WebhookService, rewritten

Json = dict[str, Any]

SERVICE = WebhookService("jobset", 4443, "the PEM")


def webhook(resource: str) -> Json:
    return {
        "name": f"{resource}.kb.io",
        "clientConfig": {
            "service": {"name": "webhook-service", "namespace": "system", "path": f"/{resource}"}
        },
        "rules": [{"apiGroups": ["*"], "resources": [resource]}],
        "failurePolicy": "Fail",
    }


FOUND: Json = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "mutating-webhook-configuration"},
    "webhooks": [webhook("jobsets"), webhook("pods")],
}


def test_webhook_is_called_by_url_and_with_the_authority_of_the_operator() -> None:
    made = rewritten(FOUND, SERVICE, Called())

    assert made["metadata"] == {"name": "jobset-mutating-webhook-configuration"}
    assert made["webhooks"] == [
        {
            **webhook(each),
            "clientConfig": {"url": f"https://127.0.0.1:4443/{each}", "caBundle": "dGhlIFBFTQ=="},
        }
        for each in ("jobsets", "pods")
    ]


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        pytest.param(Called(), {"jobsets.kb.io": None, "pods.kb.io": None}, id="all"),
        pytest.param(Called(frozenset({"jobsets"})), {"jobsets.kb.io": None}, id="of-some-resources"),
        pytest.param(
            Called(labels={"pods": "jobset.sigs.k8s.io/jobset-name"}),
            {
                "jobsets.kb.io": None,
                "pods.kb.io": {
                    "matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]
                },
            },
            id="for-pods-with-a-label",
        ),
    ],
)
def test_webhook_sees_the_objects_that_it_is_for(called: Called, expected: dict[str, Json | None]) -> None:
    made = rewritten(FOUND, SERVICE, called)
    assert {each["name"]: each.get("objectSelector") for each in made["webhooks"]} == expected


def test_certificate_of_webhooks_is_trusted_by_its_authority_and_its_key_is_private(tmp_path: Path) -> None:
    authority = make_webhook_certificate(tmp_path)

    ssl.create_default_context(cadata=authority)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
def test_module_of_an_operator_names_the_version_that_is_built(operator: BuiltOperator) -> None:
    required = (operator.folder / "go.mod").read_text()
    assert f"{operator.module} {operator.version}" in required
    assert f"{operator.module} {operator.version} h1:" in (operator.folder / "go.sum").read_text()


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
def test_configuration_of_an_operator_is_yaml_with_the_places_of_its_process(operator: BuiltOperator) -> None:
    places = {"kubeconfig": "k", "folder": "/f", "probes": 1, "webhook": 2}
    made = yaml.safe_load(operator.configuration.format_map(places))
    assert made is None or made["webhook"] == {"host": "127.0.0.1", "port": 2, "certDir": "/f/certificates"}
