r"""The calls of an API server, and its answers: objects, lists, refusals and warnings, whichever client is used.

It imports no client, so that commands start quickly. Any server may answer anything: an answer of another shape is
`Unavailable`. An API server sends a `Warning` header for each thing that it did not take as it was written, such as
`299 - "unknown field \"spec.replica\""`. Webhooks and policies can send any text there: count and length are bounded.

Source: https://kubernetes.io/blog/2020/09/03/warnings/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol

import orjson

from dispatcher import errors
from dispatcher.api.redaction import without_values
from dispatcher.text import one_line

Json = dict[str, Any]

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""The Accept header for the metadata of an object, or of the objects of a watch."""
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""The Accept header for the metadata of the objects of a list."""


class ApiCalls(Protocol):
    """The calls of an API server that the commands make; of a `ClusterClient`, or an `AsyncUserClient`."""

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> Json:
        """Read one object, or a page of a list."""

    async def check_ready(self) -> None:
        """Return if the API server is ready, else raise `Unavailable`."""

    async def create(self, path: str, body: Json) -> Json:
        """POST; raises `AlreadyExists` if the name is taken."""

    async def patch(self, path: str, body: Json | list[Json], content_type: str = JSON_PATCH) -> Json:
        """PATCH, by default a JSON patch."""

    async def delete(self, path: str, uid: str) -> Json:
        """DELETE with a uid precondition; raises `Conflict` if another object has the name."""


def delete_options(uid: str, **more: object) -> Json:
    """The body of a DELETE of the object with this uid, and of no other with its name; `more` are further options."""
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid},
        "propagationPolicy": "Background",
        **more,
    }


_UID: Final = re.compile("[!-~]{1,253}")
"""Characters that every database can store."""


def one_object(answer: Json, path: str) -> Json:
    """The answer to a request for one object; raises `Unavailable` for anything else, such as a list."""
    match answer:
        case {"metadata": {"uid": str(uid)}} if _UID.fullmatch(uid):
            return answer
    raise errors.Unavailable(f"{path}: the answer makes no sense")


def items_of(page: Json) -> Iterator[Json]:
    """The objects of a page of a list; raises `Unavailable` for anything else.

    No object is left out, because it would look deleted.
    """
    match page:
        case {"metadata": dict(), "items": None} | {"metadata": dict(), "items": []}:
            return
        case {"metadata": dict(), "items": list(items)} if all(map(_is_object, items)):
            yield from items
            return
        case {"metadata": dict()} if "items" not in page:
            return
    raise errors.Unavailable("a list: the answer makes no sense")


def _is_object(raw: object) -> bool:
    match raw:
        case {"metadata": {"name": str()}}:
            return True
    return False


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


MOST_WARNINGS: Final = 10
"""Warnings kept of one answer, in the order of the answer; further ones are dropped."""

LONGEST_WARNING: Final = 256
"""Characters kept of a warning; the path of a field is seldom longer."""

_WARNING: Final = re.compile(r'299 [^\s"]+ "((?:[^"\\]|\\.)*+)"')
_ESCAPED: Final = re.compile(r"\\(.)")


def warnings_in(headers: Iterable[str]) -> tuple[str, ...]:
    """The texts in the values of `Warning` headers, each in one printable line and only once; accepts any text."""
    return tuple(dict.fromkeys(islice(_texts(headers), MOST_WARNINGS)))


def _texts(headers: Iterable[str]) -> Iterator[str]:
    for header in headers:
        for found in _WARNING.finditer(header):
            text = one_line(without_values(_ESCAPED.sub(r"\1", found[1])), LONGEST_WARNING)
            if text:
                yield text
