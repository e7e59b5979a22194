"""The process `dispatcher notify`: probes, the lock of the one that sends, a collector, and a courier for each target.

Any number of processes may run; one sends, and the others stand by until its connection to the database ends. An error
of the database ends collector and couriers; the process connects again and goes on where cursors and outbox are. A
changed declaration of targets is followed without a restart, unless it has a mistake.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.api.document import Entry
from dispatcher.api.spec_errors import SpecError
from dispatcher.notify import messages
from dispatcher.notify.collector import Collector
from dispatcher.notify.courier import Courier
from dispatcher.notify.metrics import NotifierMetrics
from dispatcher.notify.retry import Bounds, Sent
from dispatcher.notify.senders import check_address, sender_of
from dispatcher.notify.targets import Target, Webhook, read_targets
from dispatcher.probes import Health, Role, serve
from dispatcher.store.notifications import NotifierStore, connected

STANDBY_SECONDS: Final = 2.0
"""Seconds between two tries to become the process that sends."""
RECONNECT_SECONDS: Final = 5.0
"""The longest pause before the next connection after an error of the database."""
REREAD_SECONDS: Final = 30.0
"""Seconds between two looks at the declaration of targets."""
RESTART_SECONDS: Final = 5.0
"""Seconds after which a part that raised begins anew."""

_log = log.get("notify")


class NotifierOptions(Struct, frozen=True):
    """What the operator gives the process; `read` reads the declaration of targets anew at each call."""

    read: Callable[[], Entry]
    address: str
    port: int
    bounds: Bounds


class _TargetsChanged(Exception):  # not an error: couriers begin anew
    """The declaration of targets has changed."""


def declared(read: Callable[[], Entry]) -> tuple[Target, ...]:
    """The declared targets, each with an address that can be read. Raises `SettingsError` with the first mistake."""
    try:
        targets = read_targets(read())
    except SpecError as error:
        raise errors.SettingsError(f"the declaration of targets: {error}") from error
    for target in targets:
        check_address(target)
    return targets


def listing(targets: tuple[Target, ...]) -> str:
    """The declared targets, a line each, without their addresses."""
    return "".join(f"{_described(target)}\n" for target in targets) or "no targets\n"


def _described(target: Target) -> str:
    kind = "webhook" if isinstance(target.address, Webhook) else "apprise"
    signed = ", signed" if isinstance(target.address, Webhook) and target.address.hmac_key else ""
    open_to = ", ".join(target.namespaces.patterns) or "no namespace"
    subscription = target.subscription
    extra = [
        word
        for word, given in (
            ("subscribed", subscription),
            ("termination messages", subscription and subscription.termination_messages),
            ("queue alarms", target.alarms),
        )
        if given
    ]
    return f"{target.name}: {kind}{signed}; open to {open_to}{'; ' if extra else ''}{', '.join(extra)}"


async def run(url: str, options: NotifierOptions) -> None:
    """Send until SIGTERM or SIGINT. Raises `SettingsError` if the declaration of targets has a mistake at the start."""
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert main is not None  # noqa: S101  # a coroutine always runs in a task
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main.cancel)
    notifier = Notifier(url, options, declared(options.read))
    with contextlib.suppress(asyncio.CancelledError):
        await notifier.run()
    _log.info("stopped")


async def try_target(targets: tuple[Target, ...], name: str) -> None:
    """Send one message to the target of a name.

    Raises `SettingsError` if there is no such target, and `CommandFailed` if it does not take the message.
    """
    target = next((each for each in targets if each.name == name), None)
    if target is None:
        known = ", ".join(each.name for each in targets) or "none"
        raise errors.SettingsError(f"the declaration has no target {name!r}; it has {known}")
    now = datetime.now(UTC)
    async with sender_of(target, "trial") as sender:
        outcome = await sender.send(messages.of_trial(target.name, now), now)
    if not isinstance(outcome, Sent):
        raise errors.CommandFailed(f"target {target.name} did not take the message: {outcome.reason}")


class Notifier:
    """One process: serves probes, and sends whenever no other process does."""

    def __init__(self, url: str, options: NotifierOptions, targets: tuple[Target, ...]) -> None:
        self._url = url
        self._options = options
        self._targets = targets
        self._health = Health(watches_ready=lambda: True)
        self._metrics = NotifierMetrics()

    async def run(self) -> None:
        """Serve probes and send, until cancelled."""
        address = self._options.address
        async with serve(address, self._options.port, self._health, self._metrics) as port:
            _log.info("started", probes=f"http://{address}:{port}", targets=len(self._targets))
            while True:
                try:
                    await self._connect()
                except errors.StoreError as error:
                    self._health.problem = str(error)
                    _log.warning("store_unavailable", error=str(error), kind=type(error).__name__)
                    await asyncio.sleep(RECONNECT_SECONDS * (0.5 + random.random() / 2))  # noqa: S311  # a pause

    async def _connect(self) -> None:
        """Stand by, then send, over one connection. Raises `StoreError` once it is of no use any more."""
        async with connected(self._url) as store:
            while not await store.lead():
                self._show(Role.STANDBY)
                self._metrics.forget_targets()  # another process shows them
                await asyncio.sleep(STANDBY_SECONDS)
            self._show(Role.LEADER)
            self._metrics.sending.set(1)
            _log.info("sending", targets=[target.name for target in self._targets])
            try:
                while True:
                    await self._send(store)
            finally:
                self._metrics.sending.set(0)
                self._health.role = Role.STANDBY

    def _show(self, role: Role) -> None:
        self._health.role, self._health.problem = role, ""

    async def _send(self, store: NotifierStore) -> None:
        """Run collector and couriers until the declaration of targets changes. Raises `StoreError`."""
        hub_id = await store.hub_id()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._again("declaration", self._follow_declaration))
                tasks.create_task(self._again("collector", partial(self._collect, store)))
                for target in self._targets:
                    tell = partial(self._tell, store, target, hub_id)
                    tasks.create_task(self._again(target.name, tell))
        except BaseExceptionGroup as group:
            first = errors.innermost(group)
            if not isinstance(first, _TargetsChanged):
                raise first from group
            self._metrics.forget_targets()

    async def _again(self, part: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a part of the process; if it raises by a defect, log and count that, and begin the part anew.

        Raises `StoreError` and `_TargetsChanged`, which end all parts.
        """
        while True:
            try:
                await run()
            except (errors.StoreError, _TargetsChanged):
                raise
            except Exception:  # noqa: BLE001  # the edge of a loop: one part must not end the others
                self._metrics.errors.inc()
                _log.exception("notifier_error", part=part)
            await asyncio.sleep(RESTART_SECONDS)

    async def _collect(self, store: NotifierStore) -> None:
        await Collector(self._targets, store, self._metrics, self._options.bounds).run()

    async def _tell(self, store: NotifierStore, target: Target, hub_id: str) -> None:
        async with sender_of(target, hub_id) as sender:
            await Courier(target.name, sender, store, self._metrics, self._options.bounds).run()

    async def _follow_declaration(self) -> None:
        """Read the declaration again and again; raises `_TargetsChanged` once it says something else."""
        refused = ""
        while True:
            await asyncio.sleep(REREAD_SECONDS)
            try:
                targets = await asyncio.to_thread(declared, self._options.read)
            except errors.DispatcherError as error:
                if str(error) != refused:
                    refused = str(error)
                    _log.error("targets_unreadable", error=refused)
                continue
            refused = ""
            if targets != self._targets:
                self._targets = targets
                _log.info("targets_changed", targets=[target.name for target in targets])
                raise _TargetsChanged
