"""Errors in what people write: the path, the problem and the remedy."""

import json
from collections.abc import Mapping

from dispatcher.text import LONGEST_MESSAGE, one_line

__all__ = ["LONGEST_MESSAGE", "SpecError", "joined", "one_line", "quoted"]


class SpecError(ValueError):
    """A spec, or another document that people write, that cannot be used as written; the message is for its author.

    The message has the path, the problem and the remedy, which is empty if the problem says what is allowed. It quotes
    the user's text as JSON and cut short, so that it is one printable line that any database column and any log
    accepts.
    """

    def __init__(self, path: str, problem: str, remedy: str = "") -> None:
        end = "" if not remedy or remedy.endswith("?") else "."
        super().__init__(f"{path}: {problem}{'. ' if remedy else ''}{remedy}{end}")
        self.path = path
        self.problem = problem
        self.remedy = remedy


def joined(path: str, step: object) -> str:
    """Extend a path by a field, or by an index or an odd key in brackets."""
    if isinstance(step, str) and (_is_plain(step) or step == "[key]"):
        return f"{path}.{step}"
    return f"{path}[{quoted(step)}]"


def _is_plain(step: str) -> bool:
    """Whether it is an ASCII letter, then ASCII letters and digits. A reader asks this for each key of a document."""
    return step.isascii() and step.isalnum() and step[0].isalpha()


def quoted(value: object) -> str:
    """A value of the user as JSON, escaped and short."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
