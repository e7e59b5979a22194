"""Rewrites the answers in docs/history.md: `make docs`, or `PYTHONPATH=. python docs/generate_history.py`.

Each answer is the output of a command at the end of the fortnight in `testbed.past`; a test fails if the page differs.
A block of SQL is the stdin of the commands in the next block. The output of a command follows its line with `$`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dispatcher.__main__ import kubectl_plugin, main
from testbed.past import past_database, with_stopped_clock
from testbed.postgres import postgres_server

PAGE: Final = Path(__file__).parent / "history.md"
BEGIN: Final = "<!-- docs/generate_history.py writes the answers from here on. -->\n"
END: Final = "<!-- The generated answers end here. -->\n"

BLOCK: Final = re.compile(r"```(sql|console)\n(.*?)```", re.DOTALL)
PROGRAMS: Final[dict[str, Callable[[], None]]] = {"dispatcher": main, "kubectl aw": kubectl_plugin}


def answered(page: str, url: str) -> str:
    """The page, with the output of its commands on the database at that URL."""
    head, begin, rest = page.partition(BEGIN)
    answers, end, foot = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} lacks {BEGIN if not begin else END}")
    question = ""

    def block(found: re.Match[str]) -> str:
        nonlocal question
        if found[1] == "sql":
            question = found[2]
            return found[0]
        return f"```console\n{''.join(_console(found[2], question))}```"

    with _environment(url):
        return f"{head}{begin}{BLOCK.sub(block, answers)}{end}{foot}"


def _console(block: str, question: str) -> Iterator[str]:
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        yield f"$ {command}\n{output_of(command, question)}"


def output_of(command: str, stdin: str = "") -> str:
    """The output of a command line on stdout and stderr; raises SystemExit if it fails."""
    program, arguments = _parsed(command)
    output, before = io.StringIO(), (sys.argv, sys.stdin)
    sys.argv, sys.stdin = arguments, io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            program()
    except SystemExit as ended:
        if ended.code:
            raise SystemExit(f"{command}: {output.getvalue()}") from ended
    finally:
        sys.argv, sys.stdin = before
    return output.getvalue()


def _parsed(command: str) -> tuple[Callable[[], None], list[str]]:
    """The program and its arguments, without a redirection of stdin."""
    for name, program in PROGRAMS.items():
        if command.startswith(f"{name} "):
            typed = command.removeprefix(f"{name} ").partition(" < ")[0]
            return program, [name, *shlex.split(typed)]
    raise SystemExit(f"not a command of the dispatcher: {command}")


@contextlib.contextmanager
def _environment(url: str) -> Iterator[None]:
    before = os.environ.get("DISPATCHER_DATABASE_URL")
    os.environ["DISPATCHER_DATABASE_URL"] = with_stopped_clock(url)
    try:
        yield
    finally:
        del os.environ["DISPATCHER_DATABASE_URL"]
        if before is not None:
            os.environ["DISPATCHER_DATABASE_URL"] = before


if __name__ == "__main__":
    with postgres_server() as server, past_database(server.url) as past:
        PAGE.write_text(answered(PAGE.read_text(encoding="utf-8"), past), encoding="utf-8")
