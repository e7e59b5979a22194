"""A message as it travels: as a CloudEvent with a signature, or as text for people.

The event is in the structured mode of CloudEvents 1.0. Source: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md
The signature is that of Standard Webhooks: an HMAC-SHA256 over the id, the time and the body.
Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson

from dispatcher.api.names import PREFIX
from dispatcher.notify.messages import Message

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # the prefix of a key, not a key
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def cloud_event(message: Message, hub_id: str) -> bytes:
    """The body of a webhook. Its `source` and `id` together name the message, each time that it is sent."""
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": message.id,
            "source": f"/{PREFIX}/hubs/{hub_id}",
            "type": f"{PREFIX}.{message.kind}",
            "subject": message.about,
            "time": message.at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": {"text": message.text, "command": message.command, **message.facts},
        }
    )


def headers(message_id: str, body: bytes, key: str, now: datetime) -> Mapping[str, str]:
    """The headers of a webhook; `now` bounds for its receiver how old the request may be."""
    seconds = str((now - _EPOCH) // timedelta(seconds=1))
    common = {"Content-Type": CONTENT_TYPE, "webhook-id": message_id, "webhook-timestamp": seconds}
    if not key:
        return common
    signed = b".".join((message_id.encode(), seconds.encode(), body))
    digest = hmac.new(_key(key), signed, hashlib.sha256).digest()
    return {**common, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}


def _key(written: str) -> bytes:
    """The key in bytes: what follows `whsec_` is Base64, another key counts as it is written."""
    if written.startswith(SECRET_PREFIX):
        try:
            return base64.b64decode(written.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            pass
    return written.encode()


def as_text(message: Message) -> str:
    """The text for people, with the command that shows more, and the id by which a repetition is known."""
    return f"{message.text}\n\n{message.command}\n\n({message.id})"
