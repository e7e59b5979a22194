"""Ports of the loopback address that no other process gets while they are reserved."""

import socket


class Ports:
    """Some reserved free ports, by name.

    Each is held by a socket that is bound and does not listen. The kernel then assigns the port to no process that asks
    for any port, but a program that names the port can listen there (both set SO_REUSEADDR, as Go does). So planes that
    start at once do not race, and a killed API server gets its port again.
    """

    def __init__(self, *names: str) -> None:
        self._held = {each: self._hold() for each in names}
        self._numbers: dict[str, int] = {each: held.getsockname()[1] for each, held in self._held.items()}

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def release(self) -> None:
        """Releases the ports. Safe to repeat."""
        for held in self._held.values():
            held.close()

    def _hold(self) -> socket.socket:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return held
