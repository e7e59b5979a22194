"""Sends one message to one target: by an HTTP POST, or by the library apprise in a thread of the target's own.

Each attempt has a timeout, and no target shares anything with another one that could make it wait. Failures name no
address, because addresses hold tokens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

import aiohttp

from dispatcher.errors import SettingsError
from dispatcher.notify import envelopes
from dispatcher.notify.messages import Message
from dispatcher.notify.retry import Failed, Outcome, Sent, outcome_of_status
from dispatcher.notify.targets import AppriseAddress, Target, Webhook
from dispatcher.text import one_line

if TYPE_CHECKING:
    from apprise import Apprise, NotifyBase

SECONDS: Final = 15.0
"""The longest attempt to send one message."""
LONGEST_REASON: Final = 200
USER_AGENT: Final = "appwrapper-dispatcher"
TEXT: Final = "text"
"""The format of messages, as apprise names it."""
ESCAPING: Final = frozenset({"mailto", "mailtos", "slack", "workflow", "workflows"})
"""The schemas of services that show text as it is, because apprise escapes their marks in it: mail, Slack, Teams.

Source: `conversion/format.py` of apprise, and `dialect_convert` of its plugins
"""


class Sender(Protocol):
    """Sends messages to one target."""

    async def send(self, message: Message, now: datetime) -> Outcome:
        """Try once to send the message; never raises but for cancellation."""


@asynccontextmanager
async def sender_of(target: Target, hub_id: str) -> AsyncIterator[Sender]:
    """The sender of a target, as long as the block lasts. Raises `SettingsError` for an address it cannot read."""
    match target.address:
        case Webhook() as webhook:
            async with _session() as session:
                yield WebhookSender(session, webhook, hub_id)
        case AppriseAddress(url):
            sender = AppriseSender(target.name, url)
            try:
                yield sender
            finally:
                sender.close()
        case _:
            assert_never(target.address)


def _session() -> aiohttp.ClientSession:
    # A context of its own: the one that aiohttp makes when it is imported trusts no authority in this program.
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(), limit=1, force_close=True)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": USER_AGENT},
    )


class WebhookSender:
    """Posts CloudEvents to an address, and to no other: redirections are not followed."""

    def __init__(self, session: aiohttp.ClientSession, webhook: Webhook, hub_id: str) -> None:
        self._session = session
        self._webhook = webhook
        self._hub_id = hub_id

    async def send(self, message: Message, now: datetime) -> Outcome:
        """Try once to send the message; the answer's body is not read."""
        body = envelopes.cloud_event(message, self._hub_id)
        headers = envelopes.headers(message.id, body, self._webhook.hmac_key, now)
        try:
            async with self._session.post(
                self._webhook.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return outcome_of_status(response.status, response.headers.get("Retry-After", ""))
        except TimeoutError:
            return Failed(f"no answer within {SECONDS:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Failed(_kind_of(error))


def _kind_of(error: Exception) -> str:
    """What failed, without the address: the text of an error may have it."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    reason = os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else ""
    return ": ".join(filter(None, (type(cause).__name__, reason)))


class AppriseSender:
    """Sends by apprise, which blocks: in one thread of its own, so that a server that hangs delays no other target."""

    def __init__(self, name: str, url: str) -> None:
        self._apprise = _apprise(name, url)
        self._is_escaped = all(_schemas_of(each) <= ESCAPING for each in self._apprise)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"notify-{name}")
        self._last: asyncio.Future[bool] | None = None

    def close(self) -> None:
        """Start no other attempt; one that is under way ends by the timeouts of its connection."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, message: Message) -> bool:
        title, text = message.title, envelopes.as_text(message)
        if not self._is_escaped:
            title, text = without_marks(title), without_marks(text)
        return bool(self._apprise.notify(title=title, body=text, body_format=TEXT))

    async def send(self, message: Message, now: datetime) -> Outcome:  # noqa: ARG002  # as of every sender
        """Try once to send the message."""
        if self._last is not None and not self._last.done():
            return Failed("the last attempt has not ended yet")
        said: list[str] = []
        call = _noting(said, lambda: self._send(message))
        self._last = asyncio.get_running_loop().run_in_executor(self._thread, call)
        done, _ = await asyncio.wait([self._last], timeout=SECONDS)
        if not done:
            return Failed(f"no answer within {SECONDS:g} s")
        with suppress(Exception):  # whatever a plugin raises is a failure to send
            if self._last.result():
                return Sent()
        return Failed(said[-1] if said else "apprise could not send it")


_MARKS: Final = re.compile(r"[@<]|\](?=\()")
_INVISIBLE: Final = "\N{ZERO WIDTH SPACE}"


def without_marks(text: str) -> str:
    """The text without what a chat reads as a mention, a tag or a link with a name; it looks the same.

    A message has words of tenants, and many services read every text as Markdown. Their escapes differ, but none knows
    such a mark with an invisible character in it.
    """
    return _MARKS.sub(rf"\g<0>{_INVISIBLE}", text)


def check_address(target: Target) -> None:
    """Raise `SettingsError` if apprise cannot read the address of a target."""
    if isinstance(target.address, AppriseAddress):
        _apprise(target.name, target.address.url)


def _apprise(name: str, url: str) -> Apprise:
    try:
        import apprise  # it takes half a second, and only targets with such an address need it
    except ImportError as error:
        raise SettingsError(
            f"target {name} has an address of apprise, which is not installed: {error}"
        ) from error
    _listen()
    asset = apprise.AppriseAsset(
        async_mode=False, secure_logging=True, app_id=USER_AGENT, pgp_autogen=False, pem_autogen=False
    )
    made = apprise.Apprise(asset=asset)
    if not made.add(url):
        raise SettingsError(
            f"target {name}: apprise cannot read its address; docs/notify.md has examples for mail, Slack and Teams"
        )
    return made


def _schemas_of(service: NotifyBase) -> frozenset[str]:
    """How addresses of a service begin."""
    return frozenset(service.schemas())  # type: ignore[no-untyped-call]  # apprise leaves it untyped


_said: ContextVar[list[str] | None] = ContextVar("said", default=None)
"""The warnings of apprise about the message that this context sends."""


def _noting(said: list[str], call: Callable[[], Any]) -> Callable[[], Any]:
    """The call in a context of its own, in which warnings of apprise go to `said`."""
    context = copy_context()
    context.run(_said.set, said)
    return lambda: context.run(call)


class _Listener(logging.Handler):
    """Hands what apprise logs to the attempt that it is about; apprise masks the tokens of addresses there."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a warning."""
        said = _said.get()
        if said is not None:
            said.append(one_line(record.getMessage(), LONGEST_REASON))


_LISTENER: Final = _Listener(logging.WARNING)


def _listen() -> None:
    logger = logging.getLogger("apprise")
    logger.propagate = False
    if _LISTENER not in logger.handlers:
        logger.addHandler(_LISTENER)
