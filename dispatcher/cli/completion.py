"""What can come next on a command line, for kubectl, which asks a program of its own about each plugin.

kubectl runs `kubectl_complete-aw` with the words so far and the one that is being typed, and reads a candidate a line
and what is to be done with them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Final

import typer
from typer.completion import get_completion_inspect_parameters

NO_FILES: Final = ":4"
"""kubectl's word for: these are all, and files are none of them."""

_PROGRAM: Final = "kubectl-aw"


def complete(program: typer.Typer, words: Sequence[str]) -> None:
    """Print what the last of the words may become."""
    # Has typer know the shells; that is all it is for here. And it is asked as bash asks, since it has no other way.
    get_completion_inspect_parameters()
    os.environ |= {
        "COMP_WORDS": shlex.join([_PROGRAM, *words]),
        "COMP_CWORD": str(max(1, len(words))),
        "_KUBECTL_AW_COMPLETE": "complete_bash",
    }
    try:
        program(prog_name=_PROGRAM)
    finally:
        typer.echo(NO_FILES)
