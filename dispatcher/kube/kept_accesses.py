"""Accesses of a person's kubeconfig, kept by a process that asks its API servers for hours.

To read a kubeconfig takes milliseconds, and its exec plugin may take seconds or ask for a login. So an access is kept,
as client-go keeps it, until its credentials expire, an API server refuses them, or a file has changed that it was made
of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dispatcher.kube.user_kubeconfig import Access, UserKubeconfig, access_of, read_kubeconfig

Stamps = Mapping[str, tuple[int, int, int] | None]
"""What tells a file from a changed one, by path; None if it is not there."""


class KeptAccesses:
    """The accesses of the kubeconfig at `path`, by default of KUBECONFIG or ~/.kube/config, or of the pod's account.

    May be asked by several threads, which wait while an access is made. Raises `SettingsError` as `access_of` does.
    """

    def __init__(self, path: str = "", now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._file: UserKubeconfig | None = None
        self._file_stamps: Stamps = {}
        self._kept: dict[str, _Kept] = {}

    def has_context(self, context: str) -> bool:
        """True if the kubeconfig has a context of that name."""
        with self._lock:
            file = self._kubeconfig()
            return file is not None and context in file.contexts

    def of(self, context: str = "") -> Access:
        """The access of a context, by default of the current one."""
        with self._lock:
            file = self._kubeconfig()
            kept = self._kept.get(context)
            if kept is None or kept.is_over(self._now()):
                return self._made(context, file)
            return kept.access

    def renewed(self, context: str, refused: Access) -> Access:
        """The access of a context after an API server has refused this one: the one made since, else a new one."""
        with self._lock:
            kept = self._kept.get(context)
            if kept is not None and kept.access is not refused:
                return kept.access
            self._file = None  # it may have changed while it was read
            return self._made(context, self._kubeconfig())

    def _kubeconfig(self) -> UserKubeconfig | None:
        if self._file is None or self._file_stamps != _stamps(self._file.files):
            self._file = read_kubeconfig(self._path)
            self._file_stamps = _stamps(self._file.files) if self._file else {}
            self._kept.clear()
        return self._file

    def _made(self, context: str, file: UserKubeconfig | None) -> Access:
        access = file.access(context) if file else access_of(self._path, context)
        self._kept[context] = _Kept(access, _stamps(access.files))
        return access


class _Kept(Struct, frozen=True):
    access: Access
    stamps: Stamps

    def is_over(self, now: datetime) -> bool:
        expires = self.access.expires
        return (expires is not None and now >= expires) or self.stamps != _stamps(self.access.files)


def _stamps(files: Iterable[str]) -> Stamps:
    return {file: _stamp(Path(file)) for file in files}


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
