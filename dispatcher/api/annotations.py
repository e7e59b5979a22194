"""The annotations of v1beta2 by which an author changes how faults are handled, and those that name the submitter.

The API server does not check annotations, so an unreadable value counts as absent: the dispatcher's own setting
applies, and the submitter is unknown. Durations are Go's (``1h30m``, ``1.5h``, ``500ms``, ``0``), exact to the
microsecond. A negative duration, which v1beta2 takes for 0, counts as absent as well.

Of the policies in `manifests/`, `submitter-policy.yaml` writes the submitter, and `submitter-check-policy.yaml` lets
users write only their own name. Without either any user can write these annotations, so a setting of the operator says
whether they are trusted. An invalid group is left out.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from msgspec import Struct

from dispatcher.api.names import GROUPS_ANNOTATION, USER_ANNOTATION

PREFIX: Final = "workload.codeflare.dev.appwrapper"

ADMISSION_GRACE: Final = f"{PREFIX}/admissionGracePeriodDuration"
"""How long pods may be missing after the dispatch."""

WARMUP_GRACE: Final = f"{PREFIX}/warmupGracePeriodDuration"
"""How long pods may take until they run."""

FAILURE_GRACE: Final = f"{PREFIX}/failureGracePeriodDuration"
"""How long a failed pod may be left to the controller that made it."""

RETRY_PAUSE: Final = f"{PREFIX}/retryPausePeriodDuration"
"""How long to wait before the next attempt."""

RETRY_LIMIT: Final = f"{PREFIX}/retryLimit"
"""How many attempts may follow the first; 0 means none."""

FORCE_DELETION_GRACE: Final = f"{PREFIX}/forcefulDeletionGracePeriodDuration"
"""How long deleted objects may take to go before their deletion is forced."""

DELETION_ON_FAILURE_GRACE: Final = f"{PREFIX}/deletionOnFailureGracePeriodDuration"
"""How long the objects of a failed AppWrapper are kept for inspection."""

SUCCESS_TTL: Final = f"{PREFIX}/successTTLDuration"
"""How long the objects of a finished AppWrapper are kept; can only shorten the dispatcher's own setting."""

TERMINAL_EXIT_CODES: Final = f"{PREFIX}/terminalExitCodes"
"""Exit codes, separated by commas, that no retry can fix."""

RETRYABLE_EXIT_CODES: Final = f"{PREFIX}/retryableExitCodes"
"""The only exit codes, separated by commas, that a retry may fix."""

KEYS: Final = (
    ADMISSION_GRACE,
    WARMUP_GRACE,
    FAILURE_GRACE,
    RETRY_PAUSE,
    RETRY_LIMIT,
    FORCE_DELETION_GRACE,
    DELETION_ON_FAILURE_GRACE,
    SUCCESS_TTL,
    TERMINAL_EXIT_CODES,
    RETRYABLE_EXIT_CODES,
)
"""Every annotation that is read; other annotations of an AppWrapper need not be kept."""

LONGEST_GRACE: Final = timedelta(hours=24)
LONGEST_SUCCESS_TTL: Final = timedelta(days=7)
LONGEST_TEXT: Final = 1024
"""Characters of one annotation that are read; a longer text is no duration, number or list that a person means."""

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "\N{MICRO SIGN}s": 1_000,
    "\N{GREEK SMALL LETTER MU}s": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
# Possessive, so that the regex never tries another division: any user can write an annotation, and the possible
# divisions double with each term.
_TERM = re.compile(rf"(?=\.?[0-9])([0-9]*+)(?:\.([0-9]*+))?({'|'.join(_NANOSECONDS)})")
_DURATION = re.compile(rf"([-+]?)(0|(?:{_TERM.pattern})++)")
_INT32 = range(-(2**31), 2**31)
_INT64_MAX = 2**63 - 1


class FaultTolerance(Struct, frozen=True):
    """The values of the annotations; None, or no exit codes, where the dispatcher's own setting applies.

    A non-empty ``retryable_exit_codes`` makes every other code but 0 terminal.
    """

    admission_grace: timedelta | None = None
    warmup_grace: timedelta | None = None
    failure_grace: timedelta | None = None
    retry_pause: timedelta | None = None
    force_deletion_grace: timedelta | None = None
    deletion_on_failure_grace: timedelta | None = None
    success_ttl: timedelta | None = None
    retry_limit: int | None = None
    terminal_exit_codes: frozenset[int] = frozenset()
    retryable_exit_codes: frozenset[int] = frozenset()


def fault_tolerance(annotations: Mapping[str, str]) -> FaultTolerance:
    """The values of an AppWrapper's annotations; never raises."""
    return FaultTolerance(
        admission_grace=_grace(annotations.get(ADMISSION_GRACE)),
        warmup_grace=_grace(annotations.get(WARMUP_GRACE)),
        failure_grace=_grace(annotations.get(FAILURE_GRACE)),
        retry_pause=_grace(annotations.get(RETRY_PAUSE)),
        force_deletion_grace=_grace(annotations.get(FORCE_DELETION_GRACE)),
        deletion_on_failure_grace=_grace(annotations.get(DELETION_ON_FAILURE_GRACE)),
        success_ttl=_success_ttl(annotations.get(SUCCESS_TTL)),
        retry_limit=_count(annotations.get(RETRY_LIMIT)),
        terminal_exit_codes=_exit_codes(annotations.get(TERMINAL_EXIT_CODES)),
        retryable_exit_codes=_exit_codes(annotations.get(RETRYABLE_EXIT_CODES)),
    )


def _grace(text: str | None) -> timedelta | None:
    return _duration(text, LONGEST_GRACE)


def _success_ttl(text: str | None) -> timedelta | None:
    """None for 0, as in v1beta2."""
    return _duration(text, LONGEST_SUCCESS_TTL) or None


def _duration(text: str | None, longest: timedelta) -> timedelta | None:
    nanoseconds = _nanoseconds(text)
    return None if nanoseconds is None else min(timedelta(microseconds=nanoseconds // 1000), longest)


def _nanoseconds(text: str | None) -> int | None:
    """Read a duration as Go does; None if Go rejects it, or if it is negative."""
    match = _DURATION.fullmatch(_short(text))
    if match is None:
        return None
    total = sum(_of_term(*term) for term in _TERM.findall(match[2]))
    return None if total > _INT64_MAX or (total and match[1] == "-") else total


def _of_term(whole: str, fraction: str, unit: str) -> int:
    denominator: int = 10 ** len(fraction)
    return int(whole + fraction) * _NANOSECONDS[unit] // denominator


def _count(text: str | None) -> int | None:
    number = _int32(_short(text))
    return None if number is None or number < 0 else number


def _exit_codes(text: str | None) -> frozenset[int]:
    """Read the codes that are numbers; leave out other words."""
    codes = (_int32(word.strip()) for word in _short(text).split(","))
    return frozenset(code for code in codes if code is not None)


def _int32(text: str) -> int | None:
    if not re.fullmatch("[-+]?[0-9]+", text):
        return None
    number = int(text)
    return number if number in _INT32 else None


def _short(text: str | None) -> str:
    """The text, or empty if it is too long: long numbers are slow to read, and Python refuses the longest."""
    return text if text is not None and len(text) <= LONGEST_TEXT else ""


LONGEST_NAME: Final = 512
"""Characters of a user or group; the longest name of a service account has 339."""

MOST_GROUPS: Final = 64
"""Groups that are kept, the first ones; the policy writes no more."""

EVERYBODY: Final = "system:authenticated"
"""The group of all users, which is not recorded."""


class Submitter(Struct, frozen=True):
    """A user of the API server and the user's groups at submission; empty if unknown."""

    user: str = ""
    groups: tuple[str, ...] = ()


UNKNOWN: Final = Submitter()


def submitter_of(annotations: Mapping[str, str]) -> Submitter:
    """The submitter that an AppWrapper's annotations name."""
    user = annotations.get(USER_ANNOTATION, "")
    if not _is_name(user):
        return UNKNOWN
    written = annotations.get(GROUPS_ANNOTATION, "").split("\n", MOST_GROUPS)[:MOST_GROUPS]
    return submitter(user, tuple(filter(_is_name, written)))


def stamp_of(user: str, groups: Iterable[str] = ()) -> dict[str, str]:
    """The annotations that name a submitter, as the policies write and check them; empty for an impossible name."""
    if not _is_name(user):
        return {}
    kept = [each for each in groups if each != EVERYBODY and _is_name(each)][:MOST_GROUPS]
    return {USER_ANNOTATION: user, GROUPS_ANNOTATION: "\n".join(kept)}


@functools.lru_cache(maxsize=1_000)
def submitter(user: str, groups: tuple[str, ...]) -> Submitter:
    """One shared value for equal users: few differ among many AppWrappers."""
    return Submitter(user, groups)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()
