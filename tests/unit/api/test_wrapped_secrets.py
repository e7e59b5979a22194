"""A Secret's values do not belong in an AppWrapper; a Secret without any may be wrapped."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject
from dispatcher.api.spec_errors import SpecError
from dispatcher.api.validation import check_no_secret_values

Json = dict[str, Any]

SECRET: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
HAS_DATA = {**SECRET, "data": {"password": "aHVudGVyMg=="}}
HAS_TEXT = {**SECRET, "stringData": {"password": "hunter2"}}


def wrapping(*templates: Json) -> AppWrapperSpec:
    return AppWrapperSpec(wrapped=tuple(WrappedObject(index, each) for index, each in enumerate(templates)))


def listed(kind: str, *items: object) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "l"}, "items": list(items)}


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(HAS_DATA, id="data"),
        pytest.param(HAS_TEXT, id="string-data"),
        pytest.param({**SECRET, "data": "no map"}, id="data-that-is-no-map"),
        pytest.param(listed("List", SECRET, HAS_DATA), id="in-a-list"),
        pytest.param(listed("List", listed("List", HAS_TEXT)), id="in-a-list-in-a-list"),
        pytest.param(listed("SecretList", {"metadata": {}, "data": {"a": "b"}}), id="in-a-list-of-secrets"),
    ],
)
def test_secret_with_values_is_refused_without_a_word_of_them(template: Json) -> None:
    with pytest.raises(SpecError) as caught:
        check_no_secret_values(wrapping(SECRET, template))
    said = str(caught.value)
    assert said.startswith("spec.resources.GenericItems[1]: wraps a Secret with values")
    assert "hunter2" not in said
    assert "aHVudGVyMg" not in said
    assert "password" not in said


@pytest.mark.parametrize(
    "template",
    [
        SECRET,
        {**SECRET, "data": {}, "stringData": None},
        {**HAS_DATA, "kind": "ConfigMap"},
        {**HAS_DATA, "apiVersion": "example.com/v1"},
        listed("List", SECRET, "no object"),
        listed("SecretList"),
        {"apiVersion": "v1", "kind": "SecretList"},
        {"apiVersion": "v1", "kind": "List", "items": {"kind": "Secret"}},
    ],
)
def test_everything_else_may_be_wrapped(template: Json) -> None:
    check_no_secret_values(wrapping(template))
