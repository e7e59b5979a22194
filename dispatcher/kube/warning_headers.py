r"""Reads the `Warning` headers of an API server's answer, which say what it did not take as it was written.

The API server sends one header for each warning, such as `299 - "unknown field \"spec.replica\""`. Webhooks and
policies can send any text in them, so count and length are bounded.

Source: https://kubernetes.io/blog/2020/09/03/warnings/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from dispatcher.api.redaction import without_values
from dispatcher.text import one_line

MOST_WARNINGS: Final = 10
"""Warnings kept of one answer, in the order of the answer; further ones are dropped."""

LONGEST_WARNING: Final = 256
"""Characters kept of a warning; the path of a field is seldom longer."""

_WARNING: Final = re.compile(r'299 [^\s"]+ "((?:[^"\\]|\\.)*+)"')
_ESCAPED: Final = re.compile(r"\\(.)")


def warnings_in(headers: Iterable[str]) -> tuple[str, ...]:
    """The texts in the values of `Warning` headers, each in one printable line and only once; accepts any text."""
    return tuple(dict.fromkeys(islice(_texts(headers), MOST_WARNINGS)))


def _texts(headers: Iterable[str]) -> Iterator[str]:
    for header in headers:
        for found in _WARNING.finditer(header):
            text = one_line(without_values(_ESCAPED.sub(r"\1", found[1])), LONGEST_WARNING)
            if text:
                yield text
