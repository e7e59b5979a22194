"""Runs in the SDK's own Python: executes the cells that come in, and says what became of each.

Cells come as JSON strings, one a line, over the socket that is the standard output. What a cell printed, and what its
last expression is worth or what it raised, go out there as a JSON object, one a line.
"""

from __future__ import annotations

import ast
import io
import json
import os
import socket
import traceback
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve cells until there are no more."""
    names: dict[str, Any] = {}
    with (
        socket.socket(fileno=os.dup(1)) as wire,
        wire.makefile() as cells,
        wire.makefile("w") as outcomes,
        Path(os.devnull).open("w") as nothing,
    ):
        for output in (1, 2):  # what libraries write of themselves is no outcome
            os.dup2(nothing.fileno(), output)
        for line in cells:
            outcomes.write(json.dumps(executed(json.loads(line), names)) + "\n")
            outcomes.flush()


def executed(cell: str, names: dict[str, Any]) -> dict[str, object]:
    """What a cell came to."""
    with redirect_stdout(io.StringIO()) as printed:
        try:
            return {"value": plain(worth(cell, names)), "printed": printed.getvalue()}
        except Exception:  # noqa: BLE001 - whatever a cell raises is its outcome
            return {"raised": traceback.format_exc()}


def worth(cell: str, names: dict[str, Any]) -> object:
    """Execute a cell; the value of its last statement, if that is an expression."""
    body = ast.parse(cell).body
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr):
        exec(cell, names)  # noqa: S102 - the cells are our tests'
        return None
    exec(compile(ast.Module(body[:-1], []), "<cell>", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307


def plain(value: object) -> object:
    """A value as JSON knows it; of what it does not know, the text."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value if isinstance(value, str | int | float | None) else repr(value)
