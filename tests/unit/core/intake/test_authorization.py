"""What an author must be allowed to do, and what is said of one who is not."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.annotations import UNKNOWN, Submitter
from dispatcher.api.appwrapper import AppWrapperSpec, parse_spec
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.intake.authorization import (
    Access,
    WrappedKind,
    check_known,
    check_namespace,
    wrapped_kinds,
)

ALICE = Submitter("alice", ("vision",))


def spec(*kinds: tuple[str, str], spelling: str = "items") -> AppWrapperSpec:
    templates: list[Any] = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": f"x{number}"}}
        for number, (version, kind) in enumerate(kinds)
    ]
    raw: dict[str, Any] = (
        {"resources": {"GenericItems": [{"generictemplate": each} for each in templates]}}
        if spelling == "items"
        else {"components": [{"template": each} for each in templates]}
    )
    return parse_spec(raw, namespace="team")


def test_each_kind_is_asked_about_once_where_it_is_first_wrapped() -> None:
    kinds = [("v1", "Pod"), ("ray.io/v1", "RayCluster"), ("v1", "Pod"), ("ray.io/v1alpha1", "RayCluster")]
    assert wrapped_kinds(spec(*kinds)) == (
        WrappedKind("v1", "Pod", "spec.resources.GenericItems[0]"),
        WrappedKind("ray.io/v1", "RayCluster", "spec.resources.GenericItems[1]"),
    )
    assert [each.path for each in wrapped_kinds(spec(*kinds, spelling="components"))] == [
        "spec.components[0]",
        "spec.components[1]",
    ]


def test_kinds_of_one_name_are_different_in_different_groups() -> None:
    found = wrapped_kinds(spec(("batch/v1", "Job"), ("batch.volcano.sh/v1alpha1", "Job")))
    assert [each.group for each in found] == ["batch", "batch.volcano.sh"]


def test_more_kinds_than_can_be_asked_about_are_refused() -> None:
    kinds = [("example.com/v1", f"Kind{number}") for number in range(13)]
    assert len(wrapped_kinds(spec(*kinds[:12]))) == 12
    with pytest.raises(
        SpecError, match=r"^spec: wraps 13 kinds, and at most 12 can be checked\. Spread them"
    ):
        wrapped_kinds(spec(*kinds))


@pytest.mark.parametrize(
    ("api_version", "verb"),
    [("v1", "create"), ("ray.io/v1", "create"), ("rbac.authorization.k8s.io/v1", "*")],
)
def test_kinds_that_grant_rights_need_every_verb(api_version: str, verb: str) -> None:
    assert WrappedKind(api_version, "X", "spec").verb == verb


@pytest.mark.parametrize(
    ("groups", "asked"),
    [
        pytest.param((), ("system:authenticated",), id="of-no-group"),
        pytest.param(("vision",), ("vision", "system:authenticated"), id="of-a-group"),
        pytest.param(("system:unauthenticated",), ("system:unauthenticated",), id="anonymous"),
        pytest.param(("system:authenticated", "a"), ("system:authenticated", "a"), id="written-nonetheless"),
    ],
)
def test_group_of_all_who_were_authenticated_counts_though_it_is_not_written(
    groups: tuple[str, ...], asked: tuple[str, ...]
) -> None:
    assert Access(Submitter("a", groups), "team", "", "pods", "create").groups == asked


@pytest.mark.parametrize(
    ("access", "said"),
    [
        (Access(ALICE, "team", "", "pods", "create"), "alice may not create pods in namespace team"),
        (Access(ALICE, "team", "a.b", "cs", "create"), "alice may not create cs.a.b in namespace team"),
        (
            Access(ALICE, "team", "a.b", "cs", "*"),
            "alice may not do everything with cs.a.b in namespace team",
        ),
        (Access(ALICE, "", "", "nodes", "create"), "alice may not create nodes"),
    ],
)
def test_denial_says_who_may_not_do_what_where(access: Access, said: str) -> None:
    assert access.denial() == said


def test_nothing_is_dispatched_in_a_namespace_that_is_denied() -> None:
    denied = frozenset({"kube-system", "hub"})
    check_namespace("team", denied)
    with pytest.raises(SpecError) as raised:
        check_namespace("kube-system", denied)
    assert str(raised.value) == (
        'metadata.namespace: nothing is dispatched in "kube-system". Submit the AppWrapper in another namespace.'
    )


def test_unknown_author_is_refused() -> None:
    check_known(ALICE)
    with pytest.raises(
        SpecError, match=r"^metadata\.annotations\[dispatcher\.codeflare\.dev/user\]: does not say"
    ):
        check_known(UNKNOWN)
