"""The page, served from a thread for a browser that blocks the thread of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread

from dispatcher.web.loopback import serve
from dispatcher.web.site import Sources

START_SECONDS = 60


@contextmanager
def served(sources: Sources) -> Iterator[str]:
    """The address that lets one browser in; the page ends with the block."""
    address = Future[str]()
    loop = asyncio.new_event_loop()
    serving = loop.create_task(serve(sources, 0, address.set_result))
    thread = Thread(target=_run, args=(loop, serving))
    thread.start()
    try:
        yield address.result(START_SECONDS)
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    loop.run_until_complete(asyncio.wait([serving]))
    loop.run_until_complete(loop.shutdown_default_executor())
