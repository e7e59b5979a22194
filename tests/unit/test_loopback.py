"""Bytes on their way between two sockets are seen, and nothing else is taken for them."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.unit.loopback import Loopback

SMALL = 4096


@dataclass
class Wire:
    """A connection over the loopback whose reader takes little at a time, and the loop that has both ends."""

    loopback: Loopback
    listener: socket.socket
    sender: socket.socket
    reader: socket.socket

    def is_awaited(self, *read: socket.socket) -> bool:
        """The answer if only these sockets are registered for reading."""
        keys = {
            each.fileno(): selectors.SelectorKey(each, each.fileno(), selectors.EVENT_READ, None)
            for each in read
        }
        return self.loopback.is_awaited(keys)

    def fill(self) -> int:
        """Send until the kernel takes no more; returns the bytes that it took."""
        sent = 0
        try:
            while True:
                sent += self.sender.send(bytes(2**16))
        except BlockingIOError:
            return sent

    def drain(self, size: int) -> None:
        """Read exactly so many bytes."""
        self.reader.setblocking(True)
        while size:
            size -= len(self.reader.recv(min(size, 2**20)))


@pytest.fixture
def wire() -> Iterator[Wire]:
    loopback = Loopback()
    with socket.socket() as listener, socket.socket() as reader:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        reader.connect(listener.getsockname())
        sender, _ = listener.accept()
        with sender:
            sender.setblocking(False)
            for each in (listener, reader, sender):
                loopback.note(each.fileno())
            yield Wire(loopback, listener, sender, reader)


def test_nothing_was_sent(wire: Wire) -> None:
    assert not wire.is_awaited(wire.listener, wire.reader, wire.sender)


def test_bytes_that_the_kernel_holds_back_are_awaited_by_who_reads(wire: Wire) -> None:
    size = wire.fill()
    assert wire.is_awaited(wire.reader)
    assert not wire.is_awaited(wire.sender, wire.listener)
    wire.drain(size)
    assert not wire.is_awaited(wire.reader, wire.sender)


def test_end_of_a_stream_is_awaited(wire: Wire) -> None:
    wire.fill()
    wire.sender.close()
    assert wire.is_awaited(wire.reader)
    assert not wire.is_awaited(wire.listener)


def test_connection_that_is_not_yet_accepted_is_awaited_by_who_listens(wire: Wire) -> None:
    with socket.create_connection(wire.listener.getsockname()) as second:
        wire.loopback.note(second.fileno())
        assert wire.is_awaited(wire.listener)
        assert not wire.is_awaited(second)
        accepted, _ = wire.listener.accept()
        with accepted:
            wire.loopback.note(accepted.fileno())
            assert not wire.is_awaited(wire.listener, second, accepted)


def test_files_that_are_no_connections_are_passed_over(wire: Wire) -> None:
    one, other = socket.socketpair()
    with one, other, open("/dev/null") as file:  # noqa: PTH123  # its descriptor is what is asked for
        one.send(b"x")
        for each in (one, other, file):
            wire.loopback.note(each.fileno())
        assert not wire.is_awaited(one, other)
