"""The output of a demo: printed lines stay, and a table below them is kept up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

PLAIN_WIDTH: Final = 120

T = TypeVar("T")


class Screen(Generic[T]):
    """A terminal with a table that is redrawn in place; on a pipe, the changes are printed instead.

    `tell_news` returns the lines that describe the change since the last scene, None at first; without it, a pipe gets
    the whole table again.
    """

    def __init__(
        self,
        lay_out: Callable[[T], RenderableType],
        tell_news: Callable[[T | None, T], Sequence[str]] | None = None,
    ) -> None:
        self._lay_out = lay_out
        self._tell_news = tell_news
        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = PLAIN_WIDTH
        self._live: Live | None = None
        self._shown: T | None = None
        self._began = time.monotonic()

    def __enter__(self) -> None:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Prints a line, above the table if there is one."""
        self._console.print(text)

    def say_part(self, part: str) -> None:
        """Prints that a part is ready, with the time."""
        self.say(f"  {time.monotonic() - self._began:5.1f} s  {part}")

    def print_table(self, table: RenderableType) -> None:
        """Prints a table that stays."""
        self._console.print(table)

    def show(self, seen: T) -> None:
        """Shows the present scene."""
        if seen == self._shown:
            return
        before, self._shown = self._shown, seen
        if self._live is not None:
            self._live.update(self._lay_out(seen), refresh=True)
        elif self._tell_news is None:
            self._console.print(self._lay_out(seen))
        else:
            for line in self._tell_news(before, seen):
                self.say_part(line)
