"""Ports of the loopback address that nobody else is given while we want them."""

import socket


class Ports:
    """Some free ports by name, kept free for us.

    Each is held by a socket that is bound and does not listen: the kernel gives the port to nobody who asks
    for any, and yet lets a program listen there that names it (both set SO_REUSEADDR, as Go does). So planes
    that start at once do not race, and an API server that was killed finds its port again.
    """

    def __init__(self, *names: str) -> None:
        self._held = {each: self._hold() for each in names}
        self._numbers: dict[str, int] = {each: held.getsockname()[1] for each, held in self._held.items()}

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def release(self) -> None:
        """Give them back. Safe to repeat."""
        for held in self._held.values():
            held.close()

    def _hold(self) -> socket.socket:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return held
