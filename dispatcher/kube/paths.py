"""Builds paths of the Kubernetes API from checked segments; no other module puts a name into a path.

Names come from owner references, which the API server does not check, and from answers of other clusters. A name such
as `?` or `../..` would turn a GET into another request, for example for a whole collection. So each segment is checked
by Kubernetes' own rule and quoted; for an invalid name `ImpossibleName` says that there is no such object.

Source: https://pkg.go.dev/k8s.io/apimachinery/pkg/api/validation/path#IsValidPathSegmentName
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from dispatcher import errors
from dispatcher.api.syntax import LABEL, LONGEST_LABEL, is_subdomain
from dispatcher.text import LONGEST_NAME

_PLAIN: Final = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._~-]{{0,{LONGEST_NAME - 1}}}")
"""Nearly every name; it needs no quoting."""

_VERSION: Final = re.compile(LABEL)
_PATH: Final = re.compile(r"/|(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~:@!$&'()*+,;=-]|%[0-9A-F]{2})++)++")
_NOT_IN_NAMES: Final = frozenset("/%")


def collection(api_version: str, plural: str, namespace: str = "") -> str:
    """The path of a collection, over all namespaces if none is given."""
    scope = f"/namespaces/{segment(namespace)}" if namespace else ""
    return f"{root(api_version)}{scope}/{segment(plural)}"


def item(api_version: str, plural: str, namespace: str, name: str) -> str:
    """The path of one object; `namespace` is empty for a cluster-scoped kind."""
    return f"{collection(api_version, plural, namespace)}/{segment(name)}"


def root(api_version: str) -> str:
    """The path of a group and version; raises `ImpossibleName` for anything else."""
    group, slash, version = _text(api_version).rpartition("/")
    is_one = len(version) <= LONGEST_LABEL and _VERSION.fullmatch(version) is not None
    if not is_one or (slash and not is_subdomain(group)):
        raise errors.ImpossibleName(f"{api_version!r} is no group and version of an API")
    return f"/apis/{api_version}" if slash else f"/api/{api_version}"


def segment(name: str) -> str:
    """A name as a segment of a path; raises `ImpossibleName` if no object can have it."""
    text = _text(name)
    if _PLAIN.fullmatch(text):
        return text
    if not 0 < len(text) <= LONGEST_NAME or text in {".", ".."} or not text.isprintable():
        raise errors.ImpossibleName(f"{text[:LONGEST_NAME]!r} is no name of an object")
    if not _NOT_IN_NAMES.isdisjoint(text):
        raise errors.ImpossibleName(f"{text!r} is no name of an object")
    return quote(text, safe="")


def checked(path: str) -> str:
    """The path, if this module built it; raises `ImpossibleName` for a path that a server would read as another."""
    if _PATH.fullmatch(path) is None:
        raise errors.ImpossibleName(f"{path!r} is no path of an API")
    return path


def _text(value: object) -> str:
    """The value if it is a string: foreign JSON may have any value in place of a name."""
    if not isinstance(value, str):
        raise errors.ImpossibleName(f"a {type(value).__name__} is no name of an object")
    return value
