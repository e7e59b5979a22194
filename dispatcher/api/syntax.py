"""Syntax of Kubernetes names: DNS-1123 subdomains and qualified names.

Patterns and lengths are those of apimachinery's `validation` package.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LONGEST_SUBDOMAIN: Final = 253
LONGEST_LABEL: Final = 63
LONGEST_QUALIFIED: Final = LONGEST_SUBDOMAIN + 1 + LONGEST_LABEL

MOST_COMPARED: Final = 200
"""Names that a misspelt one is compared with; core/v1 has some 20 kinds."""
LEAST_SIMILARITY: Final = 0.8
"""`difflib`'s ratio from which two names count as one and a typing error: two wrong letters in ten."""

_SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
_NAME = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_subdomain(text: str) -> bool:
    """True if the text is a DNS-1123 subdomain, the syntax of most objects' names."""
    return len(text) <= LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """True if the text is `name` or `prefix/name`, the syntax of resources, labels and annotations."""
    return len(text) <= LONGEST_QUALIFIED and _is_qualified(text)


@lru_cache(maxsize=1024)
def _is_qualified(text: str) -> bool:
    """Cached, because every AppWrapper and every pod event has the same few names."""
    prefix, slash, name = text.rpartition("/")
    named = len(name) <= LONGEST_LABEL and _NAME.fullmatch(name) is not None
    return named and (not slash or is_subdomain(prefix))


def most_similar(name: str, known: Sequence[str]) -> str:
    """The known name that `name` is most probably meant to be, whatever the case of letters; empty without any."""
    import difflib  # only an error needs it, and every command imports this module

    if len(name) > LONGEST_LABEL:
        return ""
    spelt = {each.lower(): each for each in known[:MOST_COMPARED] if len(each) <= LONGEST_LABEL}
    close = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=LEAST_SIMILARITY)
    return spelt[close[0]] if close else ""
