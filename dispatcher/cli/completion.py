"""Completions of `kubectl aw`.

kubectl runs `kubectl_complete-aw` with the words so far and the word being typed, and reads one candidate per line and
then a directive.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Final

import typer
from typer.completion import get_completion_inspect_parameters

NO_FILES: Final = ":4"
"""kubectl's directive that no names of files are offered (cobra's ShellCompDirectiveNoFileComp)."""

_PROGRAM: Final = "kubectl-aw"


def complete(program: typer.Typer, words: Sequence[str]) -> None:
    """Print the completions of the last word."""
    # Registers typer's shells. typer completes only as a shell asks, so this asks as bash does.
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
