"""How the pages look at the outside: at most once in a while, one look at a time, and old data stays if one fails."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from dispatcher.cli.options import HubOptions
from dispatcher.cli.query import on_hub
from dispatcher.errors import CommandFailed, SettingsError
from dispatcher.kube.kept_accesses import KeptAccesses

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub

Value = TypeVar("Value")


class Look(ABC, Generic[Value]):
    """The value that was read last, for `fresh_seconds` without another read; may be asked by several threads.

    `nothing` is the value before the first read that succeeds.
    """

    def __init__(
        self, nothing: Value, fresh_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._fresh_seconds = fresh_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._fresh_until = 0.0
        self.seen = nothing
        self.problem = ""
        """Why the last look failed, in a sentence; empty if it did not. The value that was read before stays."""

    def begin(self) -> None:
        """Look for the first time. Raises `CommandFailed`, of which `TryAgain` means that the hub does not answer."""
        with self._lock:
            self._renew()

    def look(self) -> Value:
        """The value now, or at the last look that the hub answered."""
        with self._lock:
            if self._monotonic() >= self._fresh_until:
                try:
                    self._renew()
                except CommandFailed as error:
                    self.problem = str(error)
            return self.seen

    @abstractmethod
    def _read(self) -> Value:
        """Read the value; raises `CommandFailed`. Any other exception means an answer that cannot be read."""

    def _renew(self) -> None:
        try:
            self.seen, self.problem = self._read(), ""
        except CommandFailed:
            raise
        except SettingsError as error:
            raise CommandFailed(str(error)) from error
        except Exception as error:  # the answer of a hub must not take the page away
            raise CommandFailed(f"the answer of the hub cannot be read ({type(error).__name__})") from error
        finally:
            self._fresh_until = self._monotonic() + self._fresh_seconds


class HubLook(Look[Value]):
    """A look at the hub, with the rights of a kubeconfig. Looks share the accesses that are `kept`."""

    def __init__(
        self,
        nothing: Value,
        fresh_seconds: float,
        at: HubOptions,
        kept: KeptAccesses | None,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(nothing, fresh_seconds, monotonic)
        self._at = at
        self._kept = kept or KeptAccesses(at.kubeconfig)

    def _read(self) -> Value:
        with on_hub(self._at, kept=self._kept) as hub:
            return self._read_from(hub)

    @abstractmethod
    def _read_from(self, hub: Hub) -> Value:
        """Read the value; raises as `_read` does."""
