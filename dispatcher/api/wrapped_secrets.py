"""Detects wrapped Secrets with values: more users read AppWrappers than Secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject
from dispatcher.api.spec_errors import SpecError

_VALUES: Final = ("data", "stringData")


def check_no_secret_values(spec: AppWrapperSpec) -> None:
    """Raise `SpecError` if the spec wraps a Secret with values; the message quotes neither values nor keys."""
    for wrapped in spec.wrapped:
        if _holds_values(wrapped):
            raise SpecError(
                spec.path_of(wrapped),
                "wraps a Secret with values, which all readers of AppWrappers or of the dispatcher's database can read",
                "Create the Secret beside the AppWrapper, and wrap only objects that name it; or have the operator set"
                " DISPATCHER_WRAPPED_SECRETS=stored",
            )


def has_secret_values(spec: AppWrapperSpec) -> bool:
    """True if the spec wraps a Secret with values."""
    return any(map(_holds_values, spec.wrapped))


def _holds_values(wrapped: WrappedObject) -> bool:
    return any(map(_has_values, _objects_in(wrapped.template)))


def _objects_in(template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The object itself and all objects in it if it is a List; `check_template` bounds the depth."""
    yield template
    items = template.get("items")
    if str(template.get("kind")).endswith("List") and isinstance(items, list):
        for item in items:
            if isinstance(item, Mapping):
                yield from _objects_in(item)


def _has_values(template: Mapping[str, Any]) -> bool:
    # The entries of a List have the list's kind unless they name their own.
    is_secret = template.get("kind") in ("Secret", "SecretList") and "/" not in str(
        template.get("apiVersion")
    )
    entries = template.get("items") if template.get("kind") == "SecretList" else [template]
    return is_secret and any(
        entry.get(field) for entry in entries or () if isinstance(entry, Mapping) for field in _VALUES
    )
