"""A message as it travels: a CloudEvent with a signature that a receiver can check, and text for people."""

from __future__ import annotations

import base64
import hashlib
import hmac

import orjson
import pytest

from dispatcher.api.notifications import Occasion
from dispatcher.notify import envelopes
from dispatcher.notify.messages import of_event
from tests.unit.notify.values import NOW, make_event

MESSAGE = of_event(make_event(7, reason="FailedComponent", message="it failed"), Occasion.FAILED)


def test_body_is_a_cloud_event() -> None:
    assert orjson.loads(envelopes.cloud_event(MESSAGE, "hub-1")) == {
        "specversion": "1.0",
        "id": "7-1795780800000000",
        "source": "/dispatcher.codeflare.dev/hubs/hub-1",
        "type": "dispatcher.codeflare.dev.appwrapper.failed",
        "subject": "team-a/train",
        "time": "2026-11-27T12:00:00Z",
        "datacontenttype": "application/json",
        "data": {
            "text": "team-a/train failed in cluster west: FailedComponent: it failed.",
            "command": "kubectl aw show train -n team-a",
            "uid": "uid-1",
            "namespace": "team-a",
            "name": "train",
            "queue": "team-a",
            "event": "Failed",
            "cause": "completed",
            "reason": "FailedComponent",
            "message": "it failed",
            "cluster": "west",
            "attempt": 1,
        },
    }


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("a-key-of-16-bytes", b"a-key-of-16-bytes"),
        (f"whsec_{base64.b64encode(b'secret').decode()}", b"secret"),
        ("whsec_not+base64!", b"whsec_not+base64!"),
    ],
)
def test_signature_is_that_of_standard_webhooks(key: str, secret: bytes) -> None:
    body = b'{"id": 1}'
    headers = envelopes.headers("7-1", body, key, NOW)
    assert headers["webhook-id"] == "7-1"
    assert headers["webhook-timestamp"] == "1795780800"
    signed = b"7-1.1795780800." + body
    expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_without_a_key_there_is_no_signature() -> None:
    assert "webhook-signature" not in envelopes.headers("7-1", b"{}", "", NOW)


def test_text_has_the_sentence_the_command_and_the_id() -> None:
    assert envelopes.as_text(MESSAGE) == (
        "team-a/train failed in cluster west: FailedComponent: it failed.\n\n"
        "kubectl aw show train -n team-a\n\n(7-1795780800000000)"
    )
