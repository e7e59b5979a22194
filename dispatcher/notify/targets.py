"""The targets that an operator declares: a name, an address, and who may choose it.

A target without `namespaces` is open to nobody. A name of a namespace may end in `*`, which stands for any rest. The
addresses hold tokens and keys, so they are never shown. No address comes from anywhere else than this declaration.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from dispatcher.api.document import Entry
from dispatcher.api.notifications import GROUPS, TARGET_NAME, Occasion
from dispatcher.api.spec_errors import quoted
from dispatcher.values import shown_without

MOST_TARGETS: Final = 100
MOST_NAMES: Final = 1000
"""Names of namespaces or queues of one target."""
LONGEST_ADDRESS: Final = 2048
LEAST_KEY: Final = 16
"""Characters of the key of an HMAC."""
LONGEST_WAIT: Final = timedelta(days=366)


@shown_without("url", "hmac_key")
class Webhook(Struct, frozen=True):
    """An address that takes CloudEvents by POST, signed with `hmac_key`; empty for no signature."""

    url: str
    hmac_key: str = ""


@shown_without("url")
class AppriseAddress(Struct, frozen=True):
    """An address as the library apprise reads it: mail, Slack, Teams and others."""

    url: str


Address = Webhook | AppriseAddress


class Names(Struct, frozen=True):
    """A set of names; one that ends in `*` stands for all names with that begin."""

    patterns: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """True if the name is one of them."""
        return any(
            name.startswith(each[:-1]) if each.endswith("*") else name == each for each in self.patterns
        )


class Subscription(Struct, frozen=True):
    """What a target is told without anybody's annotation, of AppWrappers in these namespaces."""

    namespaces: Names
    occasions: frozenset[Occasion] = frozenset()
    longer_than: timedelta | None = None
    termination_messages: bool = False
    """Its messages have the termination message of the container that failed first, a text of the gang's author."""


class QueueAlarms(Struct, frozen=True):
    """The alarms of queues with these names; None, or false, for an alarm that is not wanted."""

    queues: Names
    longer_than: timedelta | None = None
    """The oldest gang has been queued for longer than that."""
    more_than: int | None = None
    """More gangs are queued than that."""
    stopped: bool = False
    """The queue has a stopPolicy."""


class Target(Struct, frozen=True):
    """A declared target. `namespaces` are those whose AppWrappers may choose it."""

    name: str
    address: Address
    namespaces: Names = Names()
    subscription: Subscription | None = None
    alarms: QueueAlarms | None = None


def read_targets(document: Entry) -> tuple[Target, ...]:
    """The targets of a document with a list `targets`. Raises `SpecError` at the place of the first mistake."""
    document.check_keys(("targets",))
    names = set[str]()
    entries = document.child("targets").required().unique_elements(names, MOST_TARGETS)
    return tuple(map(_target, entries))


def _target(entry: Entry) -> Target:
    entry.check_keys(("name", "apprise", "webhook", "namespaces", "subscribe", "queues"))
    name = entry.child("name")
    if not TARGET_NAME.fullmatch(name.name()):
        name.fail(
            f"{quoted(name.value)} is no name of a target: small letters, digits and dashes, at most 63"
        )
    namespaces = _names(entry.child("namespaces"))
    return Target(
        name.name(),
        _address(entry),
        namespaces,
        _subscription(entry.child("subscribe"), namespaces),
        _alarms(entry.child("queues")),
    )


def _address(entry: Entry) -> Address:
    apprise, webhook = entry.child("apprise"), entry.child("webhook")
    if (apprise.value is None) is (webhook.value is None):
        entry.fail("must have one address: apprise or webhook")
    if apprise.value is not None:
        return AppriseAddress(_secret(apprise))
    webhook.check_keys(("url", "hmacKey"))
    url, key = webhook.child("url").required(), webhook.child("hmacKey")
    if not _is_web_address(_secret(url)):
        url.fail("must be an address that begins with https:// or http://, without a user")
    hmac_key = "" if key.value is None else _secret(key)
    if key.value is not None and len(hmac_key) < LEAST_KEY:
        key.fail(f"must have at least {LEAST_KEY} characters")
    return Webhook(url.value, hmac_key)


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and parts.username is None
    except ValueError:
        return False


def _secret(entry: Entry) -> str:
    """A text that no message quotes."""
    value = entry.required().value
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_ADDRESS:
        entry.fail(f"must be a text of 1 to {LONGEST_ADDRESS} printable characters")
    return value


def _names(entry: Entry) -> Names:
    return Names(tuple(each.name() for each in entry.elements(MOST_NAMES)))


def _subscription(entry: Entry, open_to: Names) -> Subscription | None:
    if entry.value is None:
        return None
    entry.check_keys(("events", "waitsLongerThan", "terminationMessages", "namespaces"))
    namespaces = entry.child("namespaces")
    found = Subscription(
        open_to if namespaces.value is None else _names(namespaces),
        frozenset[Occasion]().union(*map(_occasions, entry.child("events").elements(MOST_NAMES))),
        _wait(entry.child("waitsLongerThan")),
        entry.child("terminationMessages").flag(),
    )
    if not found.namespaces.patterns:
        namespaces.fail('has no namespace, so nothing is sent; for all of them: ["*"]')
    if not found.occasions and found.longer_than is None:
        entry.fail("must have events or waitsLongerThan")
    return found


def _occasions(entry: Entry) -> Iterable[Occasion]:
    word = entry.one_of([*Occasion, *GROUPS])
    return GROUPS[word] if word in GROUPS else (Occasion(word),)


def _alarms(entry: Entry) -> QueueAlarms | None:
    if entry.value is None:
        return None
    entry.check_keys(("names", "waitsLongerThan", "queuedMoreThan", "stopped"))
    more_than = entry.child("queuedMoreThan")
    found = QueueAlarms(
        _names(entry.child("names").required()),
        _wait(entry.child("waitsLongerThan")),
        None if more_than.value is None else more_than.integer(0),
        entry.child("stopped").flag(),
    )
    if found.longer_than is None and found.more_than is None and not found.stopped:
        entry.fail("must have waitsLongerThan, queuedMoreThan or stopped: true")
    return found


_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def _wait(entry: Entry) -> timedelta | None:
    """A duration such as 90m, 4h or 2d; None if it is absent."""
    if entry.value is None:
        return None
    text = entry.text()
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not number.isascii() or not number.isdigit() or len(number) > 6:
        entry.fail(f"must be a duration such as 90m, 4h or 2d, not {quoted(entry.value)}")
    length = int(number) * unit
    if not timedelta() < length <= LONGEST_WAIT:
        entry.fail(f"must be more than 0 and at most {LONGEST_WAIT.days}d, not {quoted(entry.value)}")
    return length
