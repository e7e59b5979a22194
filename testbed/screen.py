"""The output of a demo: printed lines stay, and a table below them is kept up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

PLAIN_WIDTH: Final = 120
PROSE_WIDTH: Final = 24
"""Characters that are left for the column that wraps; in a narrower terminal columns of `SPARE` are left out."""
SPARE: Final = ("from", "after", "position", "free GPUs")
"""Headings of columns that the other columns can do without."""
_BORDER: Final = 3
"""Characters between two columns."""

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
        # On a pipe no line is cut; a terminal would cut it within a word, so there it wraps at words.
        self._console = Console(highlight=False, markup=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
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
        self._console.print(self._fitted(table))

    def show(self, seen: T) -> None:
        """Shows the present scene."""
        if seen == self._shown:
            return
        before, self._shown = self._shown, seen
        if self._live is not None:
            self._live.update(self._fitted(self._lay_out(seen)), refresh=True)
        elif self._tell_news is None:
            self._console.print(self._lay_out(seen))
        else:
            for line in self._tell_news(before, seen):
                self.say_part(line)

    def _fitted(self, laid_out: RenderableType) -> RenderableType:
        """What is laid out, without broken words in a narrow terminal."""
        if isinstance(laid_out, Table) and self._console.is_terminal:
            return fitted(laid_out, self._console.width)
        return laid_out


def fitted(table: Table, width: int) -> Table:
    """The table in at most `width` characters: only its widest column wraps, and spare columns go first."""
    columns = {str(each.header): list(map(str, each.cells)) for each in table.columns}
    if not columns:
        return table
    longest = {name: max(map(len, [name, *cells])) for name, cells in columns.items()}
    prose = max(longest, key=lambda name: longest[name])
    for spare in SPARE:
        fixed = sum(size + _BORDER for name, size in longest.items() if name != prose) + _BORDER + 1
        if spare in longest and spare != prose and fixed + min(longest[prose], PROSE_WIDTH) > width:
            del longest[spare]
    shown = Table(
        title=table.title,
        caption=table.caption,
        title_justify=table.title_justify,
        caption_justify=table.caption_justify,
    )
    for name in longest:
        shown.add_column(name, no_wrap=name != prose)
    for cells in zip(*(columns[name] for name in longest), strict=True):
        shown.add_row(*cells)
    return shown
