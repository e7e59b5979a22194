"""Completions of `kubectl aw`.

kubectl runs `kubectl_complete-aw` with the words so far and the word being typed, and reads one candidate per line and
then a directive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import ShellComplete

NO_FILES: Final = ":4"
"""kubectl's directive that no names of files are offered (cobra's ShellCompDirectiveNoFileComp)."""
FILES: Final = ":0"
"""kubectl's directive that the shell offers names of files, because there are no candidates."""

_PROGRAM: Final = "kubectl-aw"


def complete(program: click.Command, words: Sequence[str]) -> None:
    """Print the completions of the last word."""
    *before, typed = words or [""]
    directive = NO_FILES
    try:
        for each in ShellComplete(program, {}, _PROGRAM, "").get_completions(before, typed):
            if each.type == "file":
                directive = FILES
            else:
                click.echo(each.value)
    finally:
        click.echo(directive)
