"""Declarations of targets: what they mean, and that each mistake is named without its secrets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.document import Entry
from dispatcher.api.notifications import Occasion
from dispatcher.api.spec_errors import SpecError
from dispatcher.notify.targets import (
    AppriseAddress,
    Names,
    QueueAlarms,
    Subscription,
    Target,
    Webhook,
    read_targets,
)

SLACK = "slack://T0KEN-A/T0KEN-B/T0KEN-C/#team"
HOOK = "https://hooks.example/in?token=T0KEN"
KEY = "T0KEN-of-16-bytes"


def read(*targets: dict[str, Any]) -> tuple[Target, ...]:
    return read_targets(Entry({"targets": list(targets)}, ""))


def test_targets_are_read() -> None:
    found = read(
        {"name": "team-slack", "apprise": SLACK, "namespaces": ["team-a", "team-b-*"]},
        {
            "name": "ops",
            "webhook": {"url": HOOK, "hmacKey": KEY},
            "subscribe": {
                "events": ["Failed", "Ended"],
                "waitsLongerThan": "4h",
                "terminationMessages": True,
                "namespaces": ["*"],
            },
            "queues": {"names": ["*"], "waitsLongerThan": "1d", "queuedMoreThan": 100, "stopped": True},
        },
    )
    assert found == (
        Target("team-slack", AppriseAddress(SLACK), Names(("team-a", "team-b-*"))),
        Target(
            "ops",
            Webhook(HOOK, KEY),
            Names(()),
            Subscription(
                Names(("*",)),
                frozenset({Occasion.FAILED, Occasion.COMPLETED}),
                timedelta(hours=4),
                termination_messages=True,
            ),
            QueueAlarms(Names(("*",)), timedelta(days=1), 100, stopped=True),
        ),
    )
    assert "T0KEN" not in repr(found)


def test_a_subscription_counts_in_the_namespaces_of_its_target() -> None:
    [target] = read(
        {"name": "a", "apprise": SLACK, "namespaces": ["team-a"], "subscribe": {"events": ["Failed"]}}
    )
    assert target.subscription == Subscription(Names(("team-a",)), frozenset({Occasion.FAILED}))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ((), []),
        (("team-a",), ["team-a"]),
        (("team-*",), ["team-a", "team-"]),
        (("*",), ["team-a", "team-", "other"]),
    ],
)
def test_names_and_begins_of_names(patterns: tuple[str, ...], names: list[str]) -> None:
    assert [each for each in ("team-a", "team-", "other") if Names(patterns).has(each)] == names


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ({}, "targets[0].name: is required"),
        ({"name": "Team", "apprise": SLACK}, 'targets[0].name: "Team" is no name of a target'),
        ({"name": "a"}, "targets[0]: must have one address: apprise or webhook"),
        (
            {"name": "a", "apprise": SLACK, "webhook": {"url": HOOK}},
            "targets[0]: must have one address: apprise or webhook",
        ),
        ({"name": "a", "apprise": 7}, "targets[0].apprise: must be a text of 1 to 2048 printable characters"),
        ({"name": "a", "apprise": f"{SLACK}\n"}, "targets[0].apprise: must be a text of 1 to 2048 printable"),
        ({"name": "a", "webhook": {}}, "targets[0].webhook.url: is required"),
        (
            {"name": "a", "webhook": {"url": "ftp://T0KEN"}},
            "targets[0].webhook.url: must be an address that begins with https:// or http://",
        ),
        (
            {"name": "a", "webhook": {"url": "https://me:T0KEN@hooks.example"}},
            "targets[0].webhook.url: must be an address that begins with https:// or http://, without a user",
        ),
        (
            {"name": "a", "webhook": {"url": "https://[T0KEN"}},
            "targets[0].webhook.url: must be an address",
        ),
        (
            {"name": "a", "webhook": {"url": HOOK, "hmacKey": "T0KEN"}},
            "targets[0].webhook.hmacKey: must have at least 16 characters",
        ),
        ({"name": "a", "apprise": SLACK, "namespace": ["x"]}, "targets[0].namespace: is unknown here"),
        ({"name": "a", "apprise": SLACK, "namespaces": "x"}, "targets[0].namespaces: must be a list"),
        (
            {"name": "a", "apprise": SLACK, "subscribe": {"events": ["Failed"]}},
            "targets[0].subscribe.namespaces: has no namespace, so nothing is sent",
        ),
        (
            {"name": "a", "apprise": SLACK, "subscribe": {"namespaces": ["*"]}},
            "targets[0].subscribe: must have events or waitsLongerThan",
        ),
        (
            {"name": "a", "apprise": SLACK, "subscribe": {"namespaces": ["*"], "events": ["Faild"]}},
            "targets[0].subscribe.events[0]: must be one of Started, Completed, Failed",
        ),
        (
            {"name": "a", "apprise": SLACK, "queues": {"names": ["*"]}},
            "targets[0].queues: must have waitsLongerThan, queuedMoreThan or stopped: true",
        ),
        (
            {"name": "a", "apprise": SLACK, "queues": {"names": ["*"], "waitsLongerThan": "4 hours"}},
            "targets[0].queues.waitsLongerThan: must be a duration such as 90m, 4h or 2d",
        ),
        (
            {"name": "a", "apprise": SLACK, "queues": {"names": ["*"], "waitsLongerThan": "0m"}},
            "targets[0].queues.waitsLongerThan: must be more than 0 and at most 366d",
        ),
    ],
)
def test_mistakes_are_named_with_their_place_and_without_secrets(
    target: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError) as raised:
        read(target)
    assert str(raised.value).startswith(problem)
    assert "T0KEN" not in str(raised.value)


def test_two_targets_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError, match=r"targets\[1\].name"):
        read({"name": "a", "apprise": SLACK}, {"name": "a", "apprise": SLACK})
