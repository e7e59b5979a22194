"""Connections of kubeconfigs on the wire: real TLS to a server on the loopback, with a throw-away authority."""

from __future__ import annotations

import asyncio
import ssl
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.kubeconfig import Connection
from testbed.certificates import builder, make_ca, make_serving

Json = dict[str, Any]

NOW = datetime.now(UTC)
TOKEN = "Sesame_open_yourself"
NOTHING_OF_A_CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nbWU=\n-----END CERTIFICATE-----\n"
NOTHING_OF_A_KEY = b"-----BEGIN EC PRIVATE KEY-----\na2V5\n-----END EC PRIVATE KEY-----\n"


@dataclass(frozen=True)
class Authority:
    """A throw-away CA, and what it has signed."""

    pem: bytes
    client_certificate: bytes
    client_key: bytes
    server_tls: ssl.SSLContext


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority whose server asks clients for a certificate, and takes those who have none as well."""
    folder = tmp_path_factory.mktemp("authority")
    ca_key, serving_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = make_ca(ca_key, NOW)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    client = builder(subject, ca.subject, client_key, NOW).sign(ca_key, hashes.SHA256())
    pem = ca.public_bytes(serialization.Encoding.PEM)
    serving = make_serving(ca, ca_key, serving_key, NOW).public_bytes(serialization.Encoding.PEM)
    (folder / "serving.pem").write_bytes(serving + pem_of(serving_key))
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=pem.decode())
    server_tls.load_cert_chain(folder / "serving.pem")
    server_tls.verify_mode = ssl.CERT_OPTIONAL
    return Authority(pem, client.public_bytes(serialization.Encoding.PEM), pem_of(client_key), server_tls)


@pytest.fixture
async def port(authority: Authority) -> AsyncIterator[int]:
    """The port of a server that tells its clients, over TLS, whom it takes them for."""

    async def whoami(request: web.BaseRequest) -> web.StreamResponse:
        certificate = request.get_extra_info("peercert") or {"subject": ()}
        names = [value for ((_, value),) in certificate["subject"]]
        return web.json_response({"token": request.headers.get("Authorization"), "certificate": names})

    runner = web.ServerRunner(web.Server(whoami), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=authority.server_tls).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def whoami(to: Connection) -> Json:
    async with ClusterClient.of(to) as client:
        return await client.get("/")


async def test_token_reaches_a_verified_server(authority: Authority, port: int) -> None:
    to = Connection(f"https://127.0.0.1:{port}", authorities=authority.pem, token=TOKEN)

    assert await whoami(to) == {"token": f"Bearer {TOKEN}", "certificate": []}


async def test_client_certificate_reaches_a_verified_server(authority: Authority, port: int) -> None:
    to = Connection(
        f"https://127.0.0.1:{port}",
        authorities=authority.pem,
        certificate=authority.client_certificate,
        key=authority.client_key,
    )

    assert await whoami(to) == {"token": None, "certificate": ["hub"]}


@pytest.mark.parametrize("name", ["kubernetes.default.svc", ""])
async def test_server_is_known_by_the_name_it_is_said_to_have(
    authority: Authority, port: int, name: str
) -> None:
    to = Connection(f"https://127.0.0.1:{port}", name, authorities=authority.pem, token=TOKEN)

    assert await whoami(to) == {"token": f"Bearer {TOKEN}", "certificate": []}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda to: replace(to, tls_server_name="other.example"), id="of-another-name"),
        pytest.param(lambda to: replace(to, authorities=b""), id="of-no-authority-of-the-system"),
    ],
)
async def test_unverified_server_gets_no_token(
    authority: Authority, port: int, changed: Callable[[Connection], Connection]
) -> None:
    to = Connection(f"https://127.0.0.1:{port}", authorities=authority.pem, token=TOKEN)

    with pytest.raises(errors.Unavailable, match="CERTIFICATE_VERIFY_FAILED") as caught:
        await whoami(changed(to))

    assert TOKEN not in "".join(traceback.format_exception(caught.value))


async def test_proxy_sees_nothing_but_where_to(authority: Authority, port: int) -> None:
    seen = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as group:
            group.create_task(pumped(reader, inner_writer))
            group.create_task(pumped(inner_reader, writer))

    async def pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(2**16):
            seen.append(chunk)
            writer.write(chunk)
        writer.close()

    async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
        address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        to = Connection(
            "https://kubernetes:6443", "localhost", address, authorities=authority.pem, token=TOKEN
        )
        answer = await whoami(to)

    assert answer == {"token": f"Bearer {TOKEN}", "certificate": []}
    assert seen[0].startswith(b"CONNECT kubernetes:6443 HTTP/1.1\r\n")
    assert TOKEN.encode() not in b"".join(seen)


def open_files() -> list[str]:
    return [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


async def test_keys_are_nowhere_once_they_are_loaded(authority: Authority) -> None:
    to = Connection(
        "https://x", "", "", authority.pem, "", authority.client_certificate, authority.client_key
    )

    async with ClusterClient.of(to):
        assert [each for each in open_files() if "kubeconfig" in each] == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"key": NOTHING_OF_A_KEY}, "not well-formed", id="no-key"),
        pytest.param({"authorities": NOTHING_OF_A_CERTIFICATE}, "not well-formed", id="no-authority"),
        pytest.param({"certificate": NOTHING_OF_A_CERTIFICATE}, "not well-formed", id="no-certificate"),
        pytest.param(
            {"key": pem_of(ec.generate_private_key(ec.SECP256R1()))},
            "KEY_VALUES_MISMATCH",
            id="key-of-another",
        ),
    ],
)
async def test_certificates_that_tls_cannot_use_are_refused(
    authority: Authority, changed: dict[str, bytes], reason: str
) -> None:
    to = Connection(
        "https://x", "", "", authority.pem, "", authority.client_certificate, authority.client_key
    )

    with pytest.raises(errors.SettingsError) as caught:
        ClusterClient.of(replace(to, **changed))  # type: ignore[arg-type]

    assert str(caught.value) == (
        f"kubeconfig: cannot be used ({reason}): certificate-authority-data, client-certificate-data "
        "or client-key-data. Write it with: kubectl config view --minify --flatten --raw."
    )
