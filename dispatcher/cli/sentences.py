"""Text for a terminal: it wraps at words, and the state of a gang is put in the same words everywhere."""

from __future__ import annotations

import re
import shutil
from typing import IO, Final

from dispatcher.text import name_of, text_of

NARROWEST: Final = 20
"""Characters of a line that text gets in any terminal."""

_WORDS: Final = re.compile(r"\S+\s*")
PARTS: Final = re.compile(r"[^\s./:]+[./:]*\s*|[./:]+\s*")
"""A word that is too long, such as the path of a field, breaks after these characters."""


def width_of(stream: IO[str]) -> int | None:
    """The columns of the terminal that a stream is; None if it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrapped(text: str, room: int | None, hang: int = 0) -> list[str]:
    """The lines of a text, of at most `room` characters if its words allow that, all but the first `hang` shorter."""
    if room is None or len(text) <= room:
        return [text]
    lines = [""]
    for word in _WORDS.findall(text):
        for part in [word] if len(word.rstrip()) <= room - hang else PARTS.findall(word):
            if lines[-1] and len(lines[-1]) + len(part.rstrip()) > room - hang * (len(lines) > 1):
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


def state_in_words(state: str, cluster: object, reason: object, message: object, mark: str = ": ") -> str:
    """A state with the cluster of a gang that has one, and the reason, such as `Failed on east: PodsFailed: 2 of 4`."""
    where = f" on {name_of(cluster)}" if cluster else ""
    why = ": ".join(filter(None, (text_of(reason), text_of(message))))
    return f"{state}{where}{mark + why if why else ''}"


def folded(text: str, width: int | None) -> str:
    """The lines of a text in `width` columns; a line that continues is indented by two more."""
    return "\n".join(each for line in text.split("\n") for each in _folded(line, width))


def _folded(line: str, width: int | None) -> list[str]:
    if width is None or len(line) <= width:
        return [line]
    said = line.lstrip()
    indent = len(line) - len(said)
    first, *others = wrapped(said, max(NARROWEST, width - indent), hang=2)
    return [f"{'':{indent}}{first}", *(f"{'':{indent + 2}}{each}" for each in others)]
