"""Fields of objects that their kinds do not have, found before the objects are submitted, and what was meant.

The hub answers a dry run of the creation, by the account of whoever submits, and stores nothing. So a misspelt field is
told at once, and not when the gang is dispatched. An object of a kind that the hub does not serve, or that the account
may not create, is not checked: the dispatcher checks it in the cluster that it goes to.

The schema of the hub's API says which fields there are. It is read only for an object with an unknown field.
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation and
https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-v3
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dispatcher import errors
from dispatcher.api.syntax import most_similar
from dispatcher.kube import paths
from dispatcher.kube.user_client import UserClient
from dispatcher.text import mapping_of, mappings_of, one_line

Json = dict[str, Any]

_UNKNOWN: Final = re.compile(r'unknown field "([^"]+)"')
_STRICT: Final = {"dryRun": "All", "fieldValidation": "Strict"}
_STEP: Final = re.compile(r"[^.\[\]]+")
_INDEX: Final = re.compile(r"\[[^\]]*\]")
_OF_KIND: Final = "x-kubernetes-group-version-kind"
_REFERENCE: Final = "#/components/schemas/"
MOST_REFERENCES: Final = 10
"""References that are followed from one schema to another; the API has at most two in a row."""


class UnknownFields:
    """Asks one hub about the objects of one submission."""

    def __init__(self, client: UserClient) -> None:
        self._client = client
        self._kinds: dict[str, Mapping[str, str]] = {}

    def of(self, raw: Json, namespace: str) -> list[str]:
        """Sentences about the unknown fields of an object; none if it has none, or if that cannot be known."""
        version, kind = str(raw.get("apiVersion")), str(raw.get("kind"))
        try:
            plural = self._plurals(version).get(kind)
            if plural is None:
                return []
            body = {**raw, "metadata": {**mapping_of(raw.get("metadata")), "namespace": namespace}}
            self._client.create(paths.collection(version, plural, namespace), body, _STRICT)
        except errors.Invalid as error:
            unknown = dict.fromkeys(_UNKNOWN.findall(str(error)))
            return [self._sentence(version, kind, path) for path in unknown]
        except errors.ClusterError:
            return []
        return []

    def _plurals(self, version: str) -> Mapping[str, str]:
        """The names in paths of the namespaced kinds of a group and version, by kind; empty if it is not served."""
        if version not in self._kinds:
            try:
                served = self._client.get(paths.root(version))
            except errors.NotFound:
                served = {}
            self._kinds[version] = {
                str(each.get("kind")): str(each.get("name"))
                for each in mappings_of(served.get("resources"))
                if each.get("namespaced") is True and "/" not in str(each.get("name"))
            }
        return self._kinds[version]

    def _sentence(self, version: str, kind: str, path: str) -> str:
        similar = most_similar(path.rpartition(".")[2], self._fields_beside(version, kind, path))
        return one_line(f'unknown field "{path}"{f"; did you mean {similar}?" if similar else ""}')

    def _fields_beside(self, version: str, kind: str, path: str) -> list[str]:
        """The fields that the kind has where that one is; none if the hub does not say so."""
        try:
            return fields_at(self._client.get(f"/openapi/v3{paths.root(version)}"), version, kind, path)
        except errors.ClusterError:
            return []


def fields_at(openapi: Json, version: str, kind: str, path: str) -> list[str]:
    """The fields beside the last step of `path` in a kind, by the OpenAPI document of its group and version."""
    schemas = mapping_of(mapping_of(openapi.get("components")).get("schemas"))
    group, _, name = version.rpartition("/")
    meant = {"group": group, "version": name, "kind": kind}
    of_kind = [
        each
        for each in mappings_of(list(schemas.values()))
        if any(meant == known for known in mappings_of(each.get(_OF_KIND)))
    ]
    schema: Mapping[str, Any] = of_kind[0] if of_kind else {}
    *steps, _ = _STEP.findall(_INDEX.sub("", path)) or [""]
    for step in steps:
        schema = _below(schemas, schema, step)
    return sorted(mapping_of(_resolved(schemas, schema).get("properties")))


def _below(schemas: Mapping[str, Any], schema: Mapping[str, Any], step: str) -> Mapping[str, Any]:
    """The schema of a field, or of the elements of its list or map; empty if there is no such field."""
    whole = _resolved(schemas, schema)
    found = mapping_of(whole.get("properties")).get(step, whole.get("additionalProperties"))
    of_field = _resolved(schemas, mapping_of(found))
    return mapping_of(of_field.get("items")) or of_field


def _resolved(schemas: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that another one refers to, itself or as the only part of `allOf`."""
    for _ in range(MOST_REFERENCES):
        reference = next(_references(schema), "")
        if not reference:
            return schema
        schema = mapping_of(schemas.get(reference.removeprefix(_REFERENCE)))
    return schema


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    for each in (schema, *mappings_of(schema.get("allOf"))):
        if isinstance(reference := each.get("$ref"), str):
            yield reference
