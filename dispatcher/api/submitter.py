"""Who submitted an AppWrapper, as the policy in `manifests/submitter-policy.yaml` writes it into annotations.

Where that policy is not enforced anybody can write them, so whether they are believed is for the operator to say.
Reading is total: a user that cannot be read counts as not written, a group as not there.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dispatcher.api.names import GROUPS_ANNOTATION, USER_ANNOTATION

LONGEST_NAME: Final = 512
"""Characters of a user or group; the longest name of a service account has 339."""

MOST_GROUPS: Final = 64
"""So many groups are kept, the first; the policy writes no more."""


@dataclass(frozen=True, slots=True)
class Submitter:
    """A user of the API server and the groups it was in then; no user where nobody knows."""

    user: str = ""
    groups: tuple[str, ...] = ()


UNKNOWN: Final = Submitter()


def submitter_of(annotations: Mapping[str, str]) -> Submitter:
    """Read who an AppWrapper's annotations say submitted it."""
    user = annotations.get(USER_ANNOTATION, "")
    if not _is_name(user):
        return UNKNOWN
    written = annotations.get(GROUPS_ANNOTATION, "").split("\n", MOST_GROUPS)[:MOST_GROUPS]
    return submitter(user, tuple(filter(_is_name, written)))


@functools.lru_cache(maxsize=1_000)
def submitter(user: str, groups: tuple[str, ...]) -> Submitter:
    """The same value for the same user: there are few of these among many AppWrappers."""
    return Submitter(user, groups)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()
