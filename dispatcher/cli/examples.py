"""What the help of a command ends with: the command as people type it."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """Lay out what a command's help ends with; the mark keeps the lines as they are."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines), ""))
