"""The error for an answer of an API server other than 2xx; it imports no client, so that commands start quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from dispatcher import errors
from dispatcher.api.redaction import without_values

_BY_STATUS: Final[dict[int, type[errors.Refused]]] = {
    400: errors.Invalid,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.Invalid,
    409: errors.Conflict,
    410: errors.Expired,
    413: errors.Invalid,
    415: errors.Invalid,
    422: errors.Invalid,
}


def refusal(
    request: tuple[str, str], status: int, phrase: str, headers: Mapping[str, str], body: bytes
) -> errors.ClusterError:
    """The error for an answer to a request (method, path), with the API server's message without values of fields."""
    method, path = request
    answered = _status_object(body)
    message = without_values(
        str(answered.get("message") or body[:300].decode(errors="replace").strip() or phrase)
    )
    reason = str(answered.get("reason") or "")
    if status == 429:
        return errors.Throttled(message, _retry_after(headers))
    if status == 409 and method == "POST" and reason in {"AlreadyExists", ""}:
        return errors.AlreadyExists(message, reason)
    error_type = _BY_STATUS.get(status)
    if error_type is None:
        return errors.Unavailable(f"{method} {path}: {status} {message}")
    return error_type(message, reason)


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return max(0.1, float(headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
