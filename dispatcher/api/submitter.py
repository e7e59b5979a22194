"""The submitter of an AppWrapper, as the policy in `manifests/submitter-policy.yaml` writes it into annotations.

Without that policy any user can write these annotations, so a setting of the operator says whether they are trusted.
Reading never fails: an invalid user counts as absent, an invalid group is left out.
"""

import functools
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from dispatcher.api.names import GROUPS_ANNOTATION, USER_ANNOTATION

LONGEST_NAME: Final = 512
"""Characters of a user or group; the longest name of a service account has 339."""

MOST_GROUPS: Final = 64
"""Groups that are kept, the first ones; the policy writes no more."""


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


@functools.lru_cache(maxsize=1_000)
def submitter(user: str, groups: tuple[str, ...]) -> Submitter:
    """One shared value for equal users: few differ among many AppWrappers."""
    return Submitter(user, groups)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()
