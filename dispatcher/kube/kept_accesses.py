"""Accesses of a person's kubeconfig, kept by a process that asks its API servers for hours.

To read a kubeconfig takes milliseconds, and its exec plugin may take seconds or ask for a login. So an access is kept,
as client-go keeps it, until its credentials expire, an API server refuses them, or a file has changed that it was made
of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from msgspec import Struct

from dispatcher.kube.user_kubeconfig import Access, UserKubeconfig, access_of, files_of, read_kubeconfig

REST: Final = timedelta(minutes=5)
"""The time between two runs of a plugin because of refusals."""

Stamps = Mapping[str, tuple[int, int, int] | None]
"""What tells a file from a changed one, by path; None if it is not there."""


class KeptAccesses:
    """The accesses of the kubeconfig at `path`, by default of KUBECONFIG or ~/.kube/config, or of the pod's account.

    May be asked by several threads. One that asks for a context waits while another makes its access, and for no other
    context. Raises `SettingsError` as `access_of` does.
    """

    def __init__(self, path: str = "", now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._file: UserKubeconfig | None = None
        self._file_stamps: Stamps = {}
        self._kept: dict[str, _Kept] = {}
        self._turns: dict[str, threading.Lock] = {}

    def has_context(self, context: str) -> bool:
        """True if the kubeconfig has a context of that name."""
        file = self._kubeconfig()
        return file is not None and context in file.contexts

    def of(self, context: str = "") -> Access:
        """The access of a context, by default of the current one."""
        return self._access(context)

    def renewed(self, context: str, refused: Access) -> Access:
        """The access of a context after an API server has refused this one: the one made since, else a new one.

        One that was made for a refusal is not made again within `REST`: an API server that refuses whatever it gets
        must not have a person's login run again and again.
        """
        return self._access(context, refused)

    def _access(self, context: str, refused: Access | None = None) -> Access:
        with self._lock:
            turn = self._turns.setdefault(context, threading.Lock())
        with turn:
            file, kept, now = self._kubeconfig(), self._kept.get(context), self._now()
            if kept is not None and kept.holds(file, now) and (kept.access is not refused or kept.rests(now)):
                return kept.access
            access = file.access(context) if file else access_of(self._path, context)
            self._kept[context] = _Kept(access, file, _stamps(access.files), now if refused else None)
            return access

    def _kubeconfig(self) -> UserKubeconfig | None:
        with self._lock:
            stamps = _stamps(files_of(self._path))
            if self._file is None or stamps != self._file_stamps:
                self._file, self._file_stamps = read_kubeconfig(self._path), stamps
            return self._file


class _Kept(Struct, frozen=True):
    access: Access
    file: UserKubeconfig | None
    stamps: Stamps
    renewed_at: datetime | None
    """When it was made because an API server had refused the one before it."""

    def rests(self, now: datetime) -> bool:
        """True if it is too new to be made again for a refusal."""
        return self.renewed_at is not None and now - self.renewed_at < REST

    def holds(self, file: UserKubeconfig | None, now: datetime) -> bool:
        """True if neither the kubeconfig nor a file that it names has changed, and the credentials have not ended."""
        is_over = self.access.expires is not None and now >= self.access.expires
        return self.file is file and not is_over and self.stamps == _stamps(self.access.files)


def _stamps(files: Iterable[str]) -> Stamps:
    return {file: _stamp(Path(file)) for file in files}


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
