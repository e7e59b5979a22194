"""The termination message of a container: a text of the gang's author, which may hold anything, secrets too.

So an event of the history has it apart from its message, and only readers who may see it read both as one line.
"""

from __future__ import annotations

from typing import Final

from dispatcher.text import one_line

LONGEST_KEPT: Final = 512
"""Characters of a termination message in an event of the history; `status.failure` has more of it."""

_BETWEEN: Final = "; termination message: "
_OTHER_QUOTES: Final = str.maketrans("«»", "<>")


def kept(termination_message: str) -> str:
    """Return what an event of the history keeps: one line of at most `LONGEST_KEPT` characters."""
    return one_line(termination_message, LONGEST_KEPT)


def both(message: str, termination_message: str) -> str:
    """Return the message of an event, and after it the termination message, if any, in one line.

    The quotes say that the termination message is the text of another author, so it has none of its own.
    """
    quoted = termination_message.translate(_OTHER_QUOTES)
    return one_line(f"{message}{_BETWEEN}«{quoted}»") if quoted else message
