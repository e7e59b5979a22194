"""The examples at the end of a command's help."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """Return an epilog of examples; its first character keeps typer from joining the lines."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines), ""))
