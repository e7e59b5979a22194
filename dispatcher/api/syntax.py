"""Syntax of Kubernetes names: DNS-1123 subdomains and qualified names.

Patterns and lengths are those of apimachinery's `validation` package.
"""

import re
from typing import Final

LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LONGEST_SUBDOMAIN: Final = 253
LONGEST_LABEL: Final = 63

_SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
_NAME = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_subdomain(text: str) -> bool:
    """True if the text is a DNS-1123 subdomain, the syntax of most objects' names."""
    return len(text) <= LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """True if the text is `name` or `prefix/name`, the syntax of resources, labels and annotations."""
    prefix, slash, name = text.rpartition("/")
    named = len(name) <= LONGEST_LABEL and _NAME.fullmatch(name) is not None
    return named and (not slash or is_subdomain(prefix))
