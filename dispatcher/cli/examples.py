"""The end of a command's help: its examples, and the exit codes of commands that read."""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final = "\n".join(
    (
        "\b",
        "Exit codes:",
        "  0  answered, even if the result is empty",
        "  1  failed: a refused query, an unknown name",
        "  2  wrong usage",
        "  3  the database or the hub did not answer in time: try again",
        "",
    )
)


def examples(*lines: str) -> str:
    """Return an epilog of examples; its first character keeps click from joining the lines."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines), ""))
