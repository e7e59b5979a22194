"""A provisioning class as operators declare it: what the autoscaler of a cluster is asked for, and how often.

It is `provisioning` of a MemberCluster or a DispatchQueue, or the setting of the hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from msgspec import Struct, field

from dispatcher.api.document import MOST_RESOURCES, Entry, read_setting
from dispatcher.api.spec_errors import quoted
from dispatcher.api.syntax import is_subdomain

LONGEST_PARAMETER: Final = 255
"""Characters of a parameter's name and value."""
MOST_PARAMETERS: Final = 100
MOST_RETRIES: Final = 100
LONGEST_PAUSE: Final = 86_400
"""Seconds."""
MOST_DOUBLINGS: Final = 20
"""Doublings of a pause: more of a day are beyond what a `timedelta` holds."""


ACCEPT_WITHIN: Final = timedelta(seconds=1800)
"""The default is long: cluster-autoscaler looks at one request per loop, of some ten seconds each."""


class RetryRule(Struct, frozen=True):
    """The rule for requests that failed: `limit` retries, in pauses that double from `base` up to `longest`."""

    limit: int = 3
    base: timedelta = timedelta(seconds=60)
    longest: timedelta = timedelta(seconds=1800)

    def pause(self, failures: int) -> timedelta:
        """The pause after that many failures in a row, 1 or more."""
        factor: int = 2 ** min(failures - 1, MOST_DOUBLINGS)
        return min(self.longest, self.base * factor)


_RETRY: Final = RetryRule()


class ProvisioningClass(Struct, frozen=True):
    """The class that is asked for capacity before a gang is dispatched.

    A pod set is `managed` by the class if it requests one of these resources; if there are none, every pod set is.
    `parameters` are sorted by name, and the operator's: an author sets those of `author_parameters`, and no others. A
    request that nobody has looked at `accept_within` that time counts as failed.
    """

    name: str = field(name="className")  # history reads it by this name
    managed: frozenset[str] = frozenset()
    parameters: tuple[tuple[str, str], ...] = ()
    retry: RetryRule = _RETRY
    accept_within: timedelta = ACCEPT_WITHIN
    author_parameters: frozenset[str] = frozenset()

    def manages(self, requests: Mapping[str, int]) -> bool:
        """True if pods with these requests are part of a request."""
        return not self.managed or any(requests.get(name, 0) > 0 for name in self.managed)


def read_provisioning(entry: Entry) -> ProvisioningClass:
    """The class that `provisioning` declares. Raises `SpecError`."""
    name, retry = entry.object().child("className"), entry.child("retry")
    if not is_subdomain(name.name()):
        name.fail(
            f"must be the name of a provisioning class, such as queued-provisioning.gke.io, not {quoted(name.value)}"
        )
    return ProvisioningClass(
        name.text(),
        frozenset(each.resource_name() for each in entry.child("managedResources").elements(MOST_RESOURCES)),
        _parameters(entry.child("parameters")),
        RetryRule(
            retry.child("limit").integer(_RETRY.limit, most=MOST_RETRIES),
            _pause(retry.child("baseSeconds"), _RETRY.base),
            _pause(retry.child("maxSeconds"), _RETRY.longest),
        ),
        _pause(entry.child("acceptWithinSeconds"), ACCEPT_WITHIN),
        frozenset(map(_name_of_parameter, entry.child("authorParameters").elements(MOST_PARAMETERS))),
    )


def parse_provisioning(text: str) -> ProvisioningClass | None:
    """The class that a setting describes in JSON; None for an empty text. Raises `ValueError` with the field."""
    return read_provisioning(read_setting(text)) if text else None


def _parameters(entry: Entry) -> tuple[tuple[str, str], ...]:
    parameters = entry.texts(MOST_PARAMETERS, LONGEST_PARAMETER)
    for each in parameters:
        if len(each) > LONGEST_PARAMETER:
            entry.fail(f"has a name of {len(each)} characters; at most {LONGEST_PARAMETER} are allowed")
    return tuple(sorted(parameters.items()))


def _name_of_parameter(entry: Entry) -> str:
    return entry.required().any_text(LONGEST_PARAMETER)


def _pause(entry: Entry, default: timedelta) -> timedelta:
    return timedelta(seconds=entry.integer(int(default.total_seconds()), least=1, most=LONGEST_PAUSE))
