"""Kubeconfigs of strangers: what is read of them, what is refused in which words, and that no secret gets out."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import ssl
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.kubeconfig import LARGEST_FILE, Connection, connection, minified
from testbed.certificates import builder, make_ca, make_serving

Json = dict[str, Any]

TOKEN = "Sesame_open_yourself"
CA_PEM = b"-----BEGIN CERTIFICATE-----\nY2E=\n-----END CERTIFICATE-----\n"
CERTIFICATE_PEM = b"-----BEGIN CERTIFICATE-----\nbWU=\n-----END CERTIFICATE-----\n"
KEY_PEM = b"-----BEGIN EC PRIVATE KEY-----\na2V5\n-----END EC PRIVATE KEY-----\n"
FLATTEN = "Write it with: kubectl config view --minify --flatten --raw."
CLUSTER = 'kubeconfig.clusters["east"].cluster'
USER = 'kubeconfig.users["hub"].user'


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def kubeconfig(cluster: object = None, user: object = None, **whole: object) -> Json:
    """A kubeconfig with a token, and what is given in place of its parts."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "to-east",
        "contexts": [{"name": "to-east", "context": {"cluster": "east", "user": "hub"}}],
        "clusters": [{"name": "east", "cluster": cluster or {"server": "https://east.example:6443"}}],
        "users": [{"name": "hub", "user": user or {"token": TOKEN}}],
        **whole,
    }


def of_cluster(**fields: object) -> Json:
    return kubeconfig(cluster={"server": "https://east.example:6443", **fields})


def read(document: object) -> Connection:
    return connection(yaml.safe_dump(document).encode())


def refusal_of(content: bytes) -> str:
    with pytest.raises(errors.SettingsError) as caught:
        connection(content)
    return str(caught.value)


EAST = Connection("https://east.example:6443", token=TOKEN)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(kubeconfig(), EAST, id="token-and-the-systems-authorities"),
        pytest.param(
            of_cluster(**{"certificate-authority-data": encoded(CA_PEM)}),
            replace(EAST, authorities=CA_PEM),
            id="authorities",
        ),
        pytest.param(
            of_cluster(**{"certificate-authority-data": f"{encoded(CA_PEM)[:20]}\n{encoded(CA_PEM)[20:]}\n"}),
            replace(EAST, authorities=CA_PEM),
            id="wrapped-base64",
        ),
        pytest.param(
            kubeconfig(
                user={
                    "client-certificate-data": encoded(CERTIFICATE_PEM),
                    "client-key-data": encoded(KEY_PEM),
                }
            ),
            replace(EAST, token="", certificate=CERTIFICATE_PEM, key=KEY_PEM),
            id="client-certificate",
        ),
        pytest.param(
            of_cluster(**{"tls-server-name": "kubernetes.default.svc", "proxy-url": "http://proxy:3128"}),
            replace(EAST, tls_server_name="kubernetes.default.svc", proxy="http://proxy:3128"),
            id="by-a-proxy-and-under-another-name",
        ),
        pytest.param(
            of_cluster(server="https://[::1]:6443/k8s/clusters/c-1/"),
            replace(EAST, server="https://[::1]:6443/k8s/clusters/c-1"),
            id="address-with-a-path",
        ),
        pytest.param(
            of_cluster(**{"insecure-skip-tls-verify": False, "certificate-authority": None}),
            EAST,
            id="said-to-be-off",
        ),
        pytest.param(kubeconfig(user={"token": "12345"}), replace(EAST, token="12345"), id="all-digits"),
        pytest.param(
            kubeconfig(
                users=[
                    {"name": "hub", "user": {"token": TOKEN}},
                    {"name": "person", "user": {"exec": {"command": "aws"}}},
                ]
            ),
            EAST,
            id="others-do-not-count",
        ),
    ],
)
def test_current_context_says_how_to_connect(document: Json, expected: Connection) -> None:
    assert read(document) == expected
    assert connection(json.dumps(document).encode()) == expected


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(
            kubeconfig(user={"exec": {"command": "aws"}}),
            f"{USER}.exec: would run a program on the hub. "
            "Use the token of a ServiceAccount, or a client certificate.",
            id="exec-plugin",
        ),
        pytest.param(
            kubeconfig(user={"auth-provider": {"name": "oidc"}, "token": TOKEN}),
            f"{USER}.auth-provider: needs a plugin that the hub does not have. "
            "Use the token of a ServiceAccount, or a client certificate.",
            id="auth-provider",
        ),
        pytest.param(
            kubeconfig(user={"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}),
            f"{USER}.tokenFile: names a file, and the hub reads none. Put the token itself under token.",
            id="token-file",
        ),
        pytest.param(
            of_cluster(**{"certificate-authority": "/etc/shadow"}),
            f"{CLUSTER}.certificate-authority: names a file, and the hub reads none. {FLATTEN}",
            id="authority-file",
        ),
        pytest.param(
            kubeconfig(user={"client-certificate": "me.crt", "client-key": "me.key"}),
            f"{USER}.client-certificate: names a file, and the hub reads none. {FLATTEN}",
            id="certificate-file",
        ),
        pytest.param(
            kubeconfig(user={"client-certificate-data": encoded(CERTIFICATE_PEM), "client-key": "me.key"}),
            f"{USER}.client-key: names a file, and the hub reads none. {FLATTEN}",
            id="key-file",
        ),
        pytest.param(
            kubeconfig(user={"username": "admin", "password": TOKEN}),
            f"{USER}.username: is of basic authentication, which no API server takes any more. "
            "Use the token of a ServiceAccount, or a client certificate.",
            id="basic-authentication",
        ),
        pytest.param(
            kubeconfig(user={"token": TOKEN, "as": "system:admin"}),
            f"{USER}.as: asks for impersonation, which the hub does not do. Use the credentials of that user.",
            id="impersonation",
        ),
        pytest.param(
            of_cluster(**{"insecure-skip-tls-verify": True}),
            f"{CLUSTER}.insecure-skip-tls-verify: switches off the verification of TLS. "
            "Remove it, and put the authority of the API server under certificate-authority-data.",
            id="unverified",
        ),
        pytest.param(
            of_cluster(server="http://east.example:8080"),
            f"{CLUSTER}.server: must begin with https://. Name the address where the API server speaks TLS.",
            id="no-tls",
        ),
        pytest.param(
            of_cluster(server="east.example:6443"),
            f"{CLUSTER}.server: is not a URL. Write it as https://host:port.",
            id="no-scheme",
        ),
        pytest.param(
            of_cluster(server="https://east example"),
            f"{CLUSTER}.server: is not a URL. Write it as https://host:port.",
            id="blank-in-the-address",
        ),
        pytest.param(
            of_cluster(server="https://east.example:99999"),
            f"{CLUSTER}.server: is not a URL. Write it as https://host:port.",
            id="no-such-port",
        ),
        pytest.param(
            of_cluster(server=f"https://admin:{TOKEN}@east.example"),
            f"{CLUSTER}.server: holds more than an address. Leave out user, password, query and fragment.",
            id="password-in-the-address",
        ),
        pytest.param(of_cluster(server=""), f"{CLUSTER}.server: is missing. {FLATTEN}", id="no-server"),
        pytest.param(
            of_cluster(server=["https://east.example"]),
            f"{CLUSTER}.server: must be text. Correct it.",
            id="list-of-servers",
        ),
        pytest.param(
            of_cluster(**{"proxy-url": "socks5://proxy:1080"}),
            f"{CLUSTER}.proxy-url: must begin with http:// and have no path. Name a proxy that takes CONNECT, "
            "such as http://proxy:3128; what passes it is TLS all the same.",
            id="socks-proxy",
        ),
        pytest.param(
            of_cluster(**{"proxy-url": f"http://me:{TOKEN}@proxy:3128"}),
            f"{CLUSTER}.proxy-url: holds more than an address. Leave out user, password, query and fragment.",
            id="password-of-a-proxy",
        ),
        pytest.param(
            of_cluster(**{"tls-server-name": "a b"}),
            f"{CLUSTER}.tls-server-name: is no host name. Write a name of the server's certificate.",
            id="no-host-name",
        ),
        pytest.param(
            of_cluster(**{"certificate-authority-data": "not base64"}),
            f"{CLUSTER}.certificate-authority-data: is not the base64 of a PEM file with a CERTIFICATE. {FLATTEN}",
            id="no-base64",
        ),
        pytest.param(
            of_cluster(**{"certificate-authority-data": encoded(KEY_PEM)}),
            f"{CLUSTER}.certificate-authority-data: is not the base64 of a PEM file with a CERTIFICATE. {FLATTEN}",
            id="key-in-place-of-a-certificate",
        ),
        pytest.param(
            kubeconfig(
                user={
                    "client-certificate-data": encoded(CERTIFICATE_PEM),
                    "client-key-data": encoded(KEY_PEM.replace(b"\na2", b"\nProc-Type: 4,ENCRYPTED\n\na2")),
                }
            ),
            f"{USER}.client-key-data: is encrypted. Decrypt it: the hub knows no passphrase.",
            id="encrypted-key",
        ),
        pytest.param(
            kubeconfig(user={"token": TOKEN, "client-certificate-data": encoded(CERTIFICATE_PEM)}),
            f"{USER}.client-key-data: is missing. Give the certificate and its key, or neither.",
            id="certificate-without-its-key",
        ),
        pytest.param(
            kubeconfig(user={"token": TOKEN, "client-key-data": encoded(KEY_PEM)}),
            f"{USER}.client-certificate-data: is missing. Give the certificate and its key, or neither.",
            id="key-without-its-certificate",
        ),
        pytest.param(
            kubeconfig(user={"namespace": "a"}),
            f"{USER}.token: is missing, and so is a client certificate. "
            "Use the token of a ServiceAccount, or a client certificate.",
            id="nobody",
        ),
        pytest.param(
            kubeconfig(user={"token": f"{TOKEN}\r\nX-Remote-User: admin"}),
            f"{USER}.token: holds white space or no ASCII. Write the token in one piece, decoded.",
            id="header-in-the-token",
        ),
        pytest.param(
            kubeconfig(**{"current-context": ""}),
            f"kubeconfig.current-context: is missing. {FLATTEN}",
            id="no-current-context",
        ),
        pytest.param(
            kubeconfig(**{"current-context": 'to-"west"'}),
            f'kubeconfig.contexts: must have one entry named "to-\\"west\\"", and has none. {FLATTEN}',
            id="no-such-context",
        ),
        pytest.param(
            kubeconfig(clusters=None),
            f'kubeconfig.clusters: must have one entry named "east", and has none. {FLATTEN}',
            id="no-clusters",
        ),
        pytest.param(
            kubeconfig(users=[{"name": "hub", "user": {"token": TOKEN}}] * 2),
            f'kubeconfig.users: must have one entry named "hub", and has 2. {FLATTEN}',
            id="two-users-of-one-name",
        ),
        pytest.param(
            kubeconfig(users=[{"name": "hub"}]), f"{USER}: is missing or no map. {FLATTEN}", id="name-only"
        ),
        pytest.param(
            kubeconfig(contexts=[{"name": "to-east", "context": {"cluster": "east"}}]),
            f'kubeconfig.contexts["to-east"].context.user: is missing. {FLATTEN}',
            id="context-of-nobody",
        ),
        pytest.param([], f"kubeconfig: is missing or no map. {FLATTEN}", id="a-list"),
        pytest.param(TOKEN, f"kubeconfig: is missing or no map. {FLATTEN}", id="the-bare-token"),
    ],
)
def test_refused_kubeconfig_names_the_field_the_problem_and_the_remedy(
    document: object, message: str
) -> None:
    assert refusal_of(json.dumps(document).encode()) == message


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", ": is missing or no map", id="nothing"),
        pytest.param(b"a: &a [x]\nb: [*a, *a]", ": line 1 has an alias, an anchor or a tag", id="alias"),
        pytest.param(b"a: 1\nb: *a", ": line 2 has an alias, an anchor or a tag", id="alias-of-nothing"),
        pytest.param(
            b"a: !!python/object:os.system x", ": line 1 has an alias, an anchor or a tag", id="tag"
        ),
        pytest.param(b"[" * 1000, ": line 1 is too large or too deep for a kubeconfig", id="deep"),
        pytest.param(b"[" * LARGEST_FILE, ": line 1 is too large or too deep for a kubeconfig", id="deepest"),
        pytest.param(
            b"- \n" * (LARGEST_FILE // 3), ": line 10000 is too large or too deep for a kubeconfig", id="wide"
        ),
        pytest.param(b"a: " + b"1:" * 500_000 + b"1", ".current-context: is missing", id="number-of-base-60"),
        pytest.param(b"x" * (LARGEST_FILE + 1), ": has more than 1048576 bytes", id="large"),
        pytest.param(b"a: b\0c", ": is not YAML", id="nul"),
        pytest.param(rb'a: "b\0c"', ": line 1 holds a NUL", id="nul-spelled-out"),
        pytest.param(b"a: \xff", ": is not UTF-8", id="no-utf-8"),
        pytest.param(b"a: b\n c: d", ": is not YAML (line 2)", id="no-yaml"),
        pytest.param(b"a: b\na: c", ": line 2 says something twice", id="key-twice"),
        pytest.param(b"[a]: b", ": line 1 has a key that is no text", id="list-for-a-key"),
        pytest.param(b"a: b\n---\nc: d", ": holds a second document", id="two-documents"),
    ],
)
def test_hostile_file_is_refused_before_it_costs_anything(content: bytes, problem: str) -> None:
    remedy = "Keep one." if "second" in problem else FLATTEN

    assert refusal_of(content) == f"kubeconfig{problem}. {remedy}"


SECRETS = (TOKEN, KEY_PEM.decode(), encoded(KEY_PEM))
WITH_SECRETS = kubeconfig(
    user={
        "token": TOKEN,
        "client-certificate-data": encoded(CERTIFICATE_PEM),
        "client-key-data": encoded(KEY_PEM),
    }
)


def damaged(text: str) -> Iterator[bytes]:
    """The file cut off, and with something put in, all over it."""
    for at in range(0, len(text), 5):
        yield text[:at].encode()
        for intruder in ("\0", "\t", "\n", "'", '"', "[", "&a ", "*a ", "!b ", ": ", "- ", "\xff"):
            yield (text[:at] + intruder + text[at:]).encode()


def misplaced(document: Json) -> Iterator[bytes]:
    """The file with its secrets where they do not belong."""
    for path in (["server"], ["tls-server-name"], ["proxy-url"], ["certificate-authority-data"]):
        for secret in SECRETS:
            broken = copy.deepcopy(document)
            broken["clusters"][0]["cluster"][path[0]] = secret
            yield yaml.safe_dump(broken).encode()
    for value in ([TOKEN], {TOKEN: TOKEN}, f"{TOKEN}\n{TOKEN}", f"{TOKEN}é"):
        for key in ("token", "client-key-data", "client-certificate-data", "exec", "password"):
            broken = copy.deepcopy(document)
            broken["users"][0]["user"][key] = value
            yield yaml.safe_dump(broken).encode()


def test_no_error_tells_a_secret() -> None:
    refused = 0
    for content in (*damaged(yaml.safe_dump(WITH_SECRETS)), *misplaced(WITH_SECRETS)):
        try:
            read_anyway = connection(content)
        except errors.SettingsError as error:
            refused += 1
            told = "".join(traceback.format_exception(error)) + repr(error) + repr(error.__context__)
        else:
            told = repr(read_anyway)
        assert not [secret for secret in SECRETS if secret in told]
    assert refused > 500


def test_connection_shows_where_it_leads_and_no_more() -> None:
    assert repr(read(WITH_SECRETS)) == (
        "Connection(server='https://east.example:6443', tls_server_name='', proxy='')"
    )


TWO_CONTEXTS = kubeconfig(
    contexts=[
        {"name": "to-east", "context": {"cluster": "east", "user": "hub", "namespace": "mine"}},
        {"name": "to-west", "context": {"cluster": "west", "user": "me"}},
        {"name": "to-nowhere", "context": {"cluster": "north", "user": "me"}},
    ],
    clusters=[
        {"name": "east", "cluster": {"server": "https://east.example:6443"}},
        {"name": "west", "cluster": {"server": "https://west.example", "insecure-skip-tls-verify": True}},
    ],
    users=[
        {"name": "hub", "user": {"token": TOKEN}},
        {"name": "me", "user": {"exec": {"command": "aws", "args": ["eks"]}}},
    ],
)


def reduced(document: object, context: str = "") -> Json:
    kept: Json = yaml.safe_load(minified(yaml.safe_dump(document).encode(), context))
    return kept


@pytest.mark.parametrize("context", ["", "to-east"])
def test_minified_has_one_context_and_is_read_as_before(context: str) -> None:
    assert reduced(TWO_CONTEXTS, context) == kubeconfig()
    assert read(reduced(TWO_CONTEXTS, context)) == read(TWO_CONTEXTS) == EAST


def test_minified_kubeconfig_keeps_the_fields_that_must_be_refused() -> None:
    kept = reduced(TWO_CONTEXTS, "to-west")

    assert kept["users"] == TWO_CONTEXTS["users"][1:]
    assert "insecure-skip-tls-verify" in refusal_of(yaml.safe_dump(kept).encode())


def test_minified_is_the_same_for_kubeconfigs_that_say_the_same() -> None:
    backwards = dict(reversed(TWO_CONTEXTS.items()))

    assert minified(yaml.safe_dump(backwards, sort_keys=False).encode()) == minified(
        json.dumps(TWO_CONTEXTS).encode()
    )


@pytest.mark.parametrize(
    ("changed", "context", "message"),
    [
        pytest.param(
            {},
            "to-north",
            'kubeconfig.contexts: has no "to-north". Choose one of: "to-east", "to-west", "to-nowhere".',
            id="no-such-context",
        ),
        pytest.param(
            {"current-context": ""},
            "",
            'kubeconfig.contexts: none is the current one. Choose one of: "to-east", "to-west", "to-nowhere".',
            id="none-is-current",
        ),
        pytest.param(
            {"contexts": []},
            "",
            'kubeconfig.contexts: has no "to-east". Choose one of: there is none.',
            id="no-contexts",
        ),
        pytest.param(
            {},
            "to-nowhere",
            f'kubeconfig.clusters: must have one entry named "north", and has none. {FLATTEN}',
            id="no-such-cluster",
        ),
    ],
)
def test_context_that_cannot_be_kept_is_refused(changed: Json, context: str, message: str) -> None:
    with pytest.raises(errors.SettingsError) as caught:
        minified(yaml.safe_dump({**TWO_CONTEXTS, **changed}).encode(), context)
    assert str(caught.value) == message


# -----------------------------------------------------------------------------------------------------------
# Connections of kubeconfigs on the wire: real TLS to a server on the loopback, with a throw-away authority.


NOW = datetime.now(UTC)
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
