"""What the kernel still has on its way between two sockets of one event loop.

Bytes that were sent over the loopback are not always there at once. On a busy machine a kernel thread delivers them,
which waits for its turn like any other. A large answer may also stop for an acknowledgement, which the kernel delays by
some tens of milliseconds. A virtual clock that jumps meanwhile makes a time limit pass that nothing has exceeded.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

_TCP: Final = (socket.AF_INET, socket.AF_INET6)
_COUNTS: Final = struct.Struct("=128x Q 8x I 52x Q Q")
"""Of `struct tcp_info` (linux/tcp.h): bytes_received, notsent_bytes, bytes_sent, bytes_retrans."""

Address = tuple[Any, ...]
Ends = tuple[Address, Address]
"""The own address of a connection and that of its peer; the peer's is empty for a socket that listens."""


class Loopback:
    """Knows the TCP sockets of one event loop from `note`, also those that wait for nothing now."""

    def __init__(self) -> None:
        self._ends: dict[int, Ends] = {}
        self._closed: set[Ends] = set()

    def note(self, fileno: int) -> None:
        """A socket has been registered; other files are passed over."""
        ends = _ends(fileno)
        known = self._ends.pop(fileno, None)
        if known is not None and known != ends:
            self._closed.add(known)
        if ends is not None:
            self._ends[fileno] = ends
            self._closed.discard(ends)

    def is_awaited(self, registered: Mapping[int, selectors.SelectorKey]) -> bool:
        """Whether one of the sockets that are registered for reading will certainly become readable."""
        for fileno in tuple(self._ends):
            self.note(fileno)
        sockets = {ends: fileno for fileno, ends in self._ends.items()}
        return any(
            self._is_on_its_way(ends, fileno, sockets)
            for ends, fileno in sockets.items()
            if fileno in registered and registered[fileno].events & selectors.EVENT_READ
        )

    def _is_on_its_way(self, ends: Ends, fileno: int, sockets: Mapping[Ends, int]) -> bool:
        own, peer = ends
        if not peer:
            return any(to == own and (to, sender) not in self._known(sockets) for sender, to in sockets)
        if (peer, own) in self._closed:
            return True
        sender = sockets.get((peer, own))
        return sender is not None and _written(sender) > _received(fileno)

    def _known(self, sockets: Mapping[Ends, int]) -> set[Ends]:
        """The connections that were accepted."""
        return self._closed | sockets.keys()


def _ends(fileno: int) -> Ends | None:
    """The ends of a TCP socket; None for all else, and for a connection that is not yet or no longer there."""
    try:
        one = socket.socket(fileno=fileno)
    except OSError:
        return None
    try:
        if one.family not in _TCP or one.type != socket.SOCK_STREAM:
            return None
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return one.getsockname(), ()
        return one.getsockname(), one.getpeername()
    except OSError:
        return None
    finally:
        one.detach()


def _written(fileno: int) -> int:
    """The bytes that were handed to the kernel."""
    _, not_sent, sent, sent_again = _counts(fileno)
    return sent - sent_again + not_sent


def _received(fileno: int) -> int:
    """The bytes that have arrived, whether or not they were read."""
    return _counts(fileno)[0]


def _counts(fileno: int) -> tuple[int, int, int, int]:
    one = socket.socket(fileno=fileno)
    try:
        received, not_sent, sent, sent_again = _COUNTS.unpack(
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
        )
        return received, not_sent, sent, sent_again
    finally:
        one.detach()
