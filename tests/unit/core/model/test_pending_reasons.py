"""The table of pending reasons: every reason that the product gives is in it, and each group has its members."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dispatcher
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.pending_reasons import REASONS, codes

MAKERS = {"Pending": 0, "Closed": 0, "_short_of": 0, "Rejection": 1, "ClusterShortfall": 1, "_back": 1}
"""What carries a reason, and which of its arguments that is."""


def given() -> set[str]:
    """The reasons that modules of the product write out, as the names of constants or as text."""
    found = set[str]()
    for path in Path(dispatcher.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"{maker}(" in text for maker in MAKERS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                at = MAKERS.get(getattr(node.func, "id", getattr(node.func, "attr", "")), len(node.args))
                found |= said(node.args[at]) if at < len(node.args) else set()
    return found


def said(argument: ast.expr) -> set[str]:
    match argument:
        case ast.Constant(str() as text):
            return {text}
        case ast.Name(name) | ast.Attribute(attr=name) if name.isupper():
            return {name}
        case _:
            return set()


def test_every_reason_that_the_product_gives_is_in_the_table() -> None:
    names = {name for name in vars(pending_reasons) if name.isupper()}
    constants = {
        "PREEMPTION_TRIGGERED",
        "CLUSTER_LOST",
        "NAMESPACE_QUEUE_FULL",
    }  # of `api.conditions`, in the table
    assert {"INSUFFICIENT_QUOTA", "QUEUE_NOT_FOUND"} <= given()
    assert given() <= names | constants | REASONS.keys()


def test_every_constant_has_its_row() -> None:
    values = {
        value for name, value in vars(pending_reasons).items() if name.isupper() and isinstance(value, str)
    }
    assert values <= REASONS.keys()
    assert all(code == reason.code for code, reason in REASONS.items())


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("lacks_quota", {"InsufficientQuota", "LargerThanQuota", "OverNominalQuota"}),
        ("waits_for_quota", {"InsufficientQuota", "OverNominalQuota", "PreemptedTooOften"}),
        (
            "more_quota_may_help",
            {
                *("InsufficientQuota", "OverNominalQuota", "PreemptedTooOften", "LargerThanQuota"),
                *("ReservedForAnother", "AwaitingHeadOfLine"),
            },
        ),
        (
            "waits_for_room",
            {
                *("", "PreemptionTriggered", "ProvisioningFailed", "ClusterLost", "CreationPostponed"),
                *("InsufficientResources", "ReservedForAnother", "AwaitingHeadOfLine", "AwaitingRelease"),
                *("NeedsPotentialNodes", "NoCluster"),
            },
        ),
        ("room_suffices", {"", "InsufficientResources", "ReservedForAnother"}),
        (
            "ends_with_others",
            {
                *("InsufficientQuota", "OverNominalQuota", "InsufficientResources", "ReservedForAnother"),
                *("AwaitingRelease", "NoCluster"),
            },
        ),
        ("is_too_large", {"LargerThanCluster", "LargerThanQuota"}),
        ("is_refused_by_queue", {"QueueNotFound", "QueueNotLeaf", "NamespaceNotAllowed", "QueueStopped"}),
        ("is_in_no_queue", {"QueueNotFound", "QueueNotLeaf", "NamespaceNotAllowed"}),
        ("is_undecided", {"AwaitingHeadOfLine", "InternalError", "NotDecided"}),
        (
            "blocks_none",
            {
                *("LargerThanCluster", "LargerThanQuota"),
                *("NotDecided", "InternalError", "RequiredPodsMissing"),
            },
        ),
        ("takes_turns", {"InsufficientQuota", "ReservedForAnother"}),
        ("is_in_no_cycle", {"AwaitingApproval", "NamespaceQueueFull"}),
        ("stops_age", {"RequiredPodsMissing"}),
        (
            "needs_another_place",
            {
                *(
                    "ClusterNotSelected",
                    "DeviceClaimsNotCounted",
                    "KindNotInstalled",
                    "NameTaken",
                    "NamespaceMissing",
                    "NamespaceNotEnabled",
                ),
                *(
                    "QueueNotFound",
                    "QueueNotLeaf",
                    "NamespaceNotAllowed",
                    "LargerThanCluster",
                    "LargerThanQuota",
                ),
            },
        ),
    ],
)
def test_reasons_that_say_so(field: str, members: set[str]) -> None:
    assert codes(lambda each: getattr(each, field)) == members
