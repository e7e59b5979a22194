"""Messages on the wire: to a real HTTP server and to a real SMTP server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.slack import NotifySlack

from dispatcher.api.notifications import Occasion
from dispatcher.errors import CommandFailed, SettingsError
from dispatcher.notify import envelopes
from dispatcher.notify.messages import Message, of_event
from dispatcher.notify.process import try_target
from dispatcher.notify.retry import Failed, Outcome, Refused, Sent
from dispatcher.notify.senders import check_address, sender_of
from dispatcher.notify.targets import AppriseAddress, Target, Webhook
from testbed.certificates import make_certificates
from tests.receivers import Mailbox, Receiver, mailbox, receiving, text_of
from tests.unit.notify.values import NOW, make_event, make_target

MESSAGE = of_event(make_event(7, message="<b>it</b> failed & ended"), Occasion.FAILED)
KEY = "a-key-of-16-bytes"


async def sent(target: Target, message: Message = MESSAGE) -> Outcome:
    async with sender_of(target, "hub-1") as sender:
        return await sender.send(message, NOW)


async def test_webhook_gets_a_signed_cloud_event() -> None:
    async with receiving() as receiver:
        assert await sent(make_target(address=Webhook(receiver.url, KEY))) == Sent()
    [(headers, body)] = receiver.received
    assert body == envelopes.cloud_event(MESSAGE, "hub-1")
    expected = envelopes.headers(MESSAGE.id, body, KEY, NOW)
    assert {name: headers[name] for name in expected} == expected
    assert headers["User-Agent"] == "appwrapper-dispatcher"


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (503, {"Retry-After": "60"}, "it answered 503"),
        (302, {"Location": "/elsewhere"}, "it answered 302: redirections are not followed"),
        (400, {}, "it answered 400"),
    ],
)
async def test_answers_of_a_webhook(status: int, headers: dict[str, str], outcome: str) -> None:
    async with receiving() as receiver:
        receiver.status, receiver.headers = status, headers
        found = await sent(make_target(address=Webhook(receiver.url)))
    assert isinstance(found, Refused if status == 400 else Failed)
    assert found.reason.startswith(outcome)
    assert len(receiver.received) == 1


async def test_a_webhook_that_does_not_listen_fails_without_its_address() -> None:
    async with receiving() as receiver:
        url = f"{receiver.url}?token=T0KEN"
    found = await sent(make_target(address=Webhook(url)))
    assert isinstance(found, Failed)
    assert "T0KEN" not in found.reason
    assert "127.0.0.1" not in found.reason


@pytest.fixture
async def box() -> AsyncIterator[Mailbox]:
    """A real SMTP server."""
    async with mailbox() as box:
        yield box


async def test_mail_has_the_sentence_the_command_and_the_id(box: Mailbox) -> None:
    assert await sent(make_target(address=AppriseAddress(box.url))) == Sent()
    [mail] = box.mails
    assert mail["Subject"] == "team-a/train: Failed"
    assert "team@example.com" in mail["To"]
    for part in (MESSAGE.text, MESSAGE.command, MESSAGE.id):
        assert part in text_of(mail)


async def test_a_mail_server_that_refuses_is_tried_again(box: Mailbox) -> None:
    box.answer = "451 try later"
    assert isinstance(await sent(make_target(address=AppriseAddress(box.url))), Failed)


async def test_trial_of_a_target_says_whether_it_was_taken(box: Mailbox) -> None:
    target = make_target(address=AppriseAddress(box.url))
    await try_target((target,), "mail")
    assert "this message tries the target mail" in text_of(box.mails[0])
    box.answer = "550 no"
    with pytest.raises(CommandFailed, match="target mail did not take the message"):
        await try_target((target,), "mail")


async def test_a_server_that_hangs_ends_an_attempt_and_is_not_called_twice_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dispatcher.notify.senders.SECONDS", 0.2)
    hangs = asyncio.Event()

    async def keep_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hangs.wait()
        writer.close()

    server = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    address = AppriseAddress(f"mailto://127.0.0.1:{port}?from=a@example.com&to=b@example.com&cto=2&rto=2")
    async with sender_of(make_target(address=address), "hub-1") as sender:
        assert await sender.send(MESSAGE, NOW) == Failed("no answer within 0.2 s")
        assert await sender.send(MESSAGE, NOW) == Failed("the last attempt has not ended yet")
        hangs.set()
    server.close()
    await server.wait_closed()


LINK = "[renew](https://login.example.com)"
TENANTS = f"@everyone @here <@123> <!channel>: {LINK}"
INVISIBLE = "\N{ZERO WIDTH SPACE}"


@pytest.fixture
def discord(monkeypatch: pytest.MonkeyPatch) -> Callable[[Receiver], str]:
    """The address of a channel of Discord, whose requests a receiver gets."""

    def address_of(receiver: Receiver) -> str:
        monkeypatch.setattr(NotifyDiscord, "notify_url", receiver.url)
        return "discord://1234/t0ken"

    return address_of


def mattermost(receiver: Receiver) -> str:
    """The address of a channel of Mattermost at a receiver."""
    return f"mmost://{receiver.url.removeprefix('http://').removesuffix('/in')}/{'t' * 26}"


@pytest.mark.parametrize("service", ["discord", "mattermost"])
async def test_a_chat_that_reads_marks_in_text_gets_none_of_a_tenant(
    service: str, discord: Callable[[Receiver], str]
) -> None:
    address_of = discord if service == "discord" else mattermost
    message = of_event(make_event(7, message=TENANTS), Occasion.FAILED)
    async with receiving() as receiver:
        assert await sent(make_target(address=AppriseAddress(address_of(receiver))), message) == Sent()
    [(_, body)] = receiver.received
    payload = orjson.loads(body)
    text = payload["content" if service == "discord" else "text"]
    assert [mark for mark in ("@everyone", "@here", "<@", "<!channel", "](") if mark in text] == []
    shown = text.replace(INVISIBLE, "")
    assert message.text in shown
    assert message.command in text


async def test_slack_gets_text_whose_marks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    message = of_event(make_event(7, message=TENANTS), Occasion.FAILED)
    async with receiving() as receiver:
        monkeypatch.setattr(NotifySlack, "webhook_url", receiver.url)
        address = AppriseAddress("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#jobs")
        await sent(make_target(address=address), message)  # which takes no empty answer for a success
    text = orjson.loads(receiver.received[0][1])["attachments"][0]["text"]
    assert "@everyone @here &lt;@123&gt; &lt;!channel&gt;: [renew]" in text
    assert INVISIBLE not in text


async def test_teams_gets_text_whose_marks_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = make_certificates(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.serving, certificates.serving_key)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.ca))
    message = of_event(make_event(7, message=f"<at>ada@example.com</at> {LINK}"), Occasion.FAILED)
    async with receiving(tls) as receiver:
        host = receiver.url.removeprefix("https://").removesuffix("/in")
        address = AppriseAddress(f"workflows://{host}/WORKFLOW/SIGNATURE")
        assert await sent(make_target(address=address), message) == Sent()
    card = orjson.loads(receiver.received[0][1])["attachments"][0]["content"]
    _image, title, body = card["body"]
    assert (title["text"], card["msteams"]) == (
        message.title,
        {"width": "full"},
    )  # without entities, as of a mention
    assert body["text"].startswith(
        r"team\-a/train failed in cluster west: <at\>ada@example\.com</at\> \[renew\]\(https://login\.example\.com\)"
    )
    assert INVISIBLE not in body["text"]


@pytest.mark.parametrize("url", ["no-such-service://x", "T0KEN", "slack://"])
def test_an_address_that_apprise_cannot_read_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(SettingsError, match="target mail: apprise cannot read its address") as raised:
        check_address(make_target(address=AppriseAddress(url)))
    assert url not in str(raised.value)
