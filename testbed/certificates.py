"""The keys and certificates of one testbed cluster: a CA, a serving certificate, a key that signs tokens.

They are new for every cluster, valid for two days, and never leave its folder. So kubeconfigs can name a CA, and
nothing in the project has a reason to skip TLS verification.
"""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = timedelta(days=2)
# The first address of the service range, by which pods would reach the API server.
ADDRESSES = ("127.0.0.1", "10.0.0.1")
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of the keys and certificates, all PEM."""

    ca: Path
    serving: Path
    serving_key: Path
    service_account_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Writes a new set into `folder`; only the owner can read the keys."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    ca_key, serving_key, token_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = make_ca(ca_key, now)
    serving = make_serving(ca, ca_key, serving_key, now)
    made = Certificates(
        folder / "ca.crt", folder / "serving.crt", folder / "serving.key", folder / "service-accounts.key"
    )
    made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    made.serving.write_bytes(serving.public_bytes(serialization.Encoding.PEM))
    write_key(made.serving_key, serving_key)
    write_key(made.service_account_key, token_key)
    return made


def make_webhook_certificate(folder: Path) -> str:
    """Writes `tls.crt` and `tls.key`, the names that operators read, into `folder`; returns the PEM of their CA.

    Only the owner can read the key. The key of the CA is forgotten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    ca_key, serving_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = make_ca(ca_key, now)
    serving = make_serving(ca, ca_key, serving_key, now)
    (folder / "tls.crt").write_bytes(serving.public_bytes(serialization.Encoding.PEM))
    write_key(folder / "tls.key", serving_key)
    return ca.public_bytes(serialization.Encoding.PEM).decode()


def make_ca(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    """A self-signed CA."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "testbed")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        builder(name, name, key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def make_serving(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    """A server certificate for the loopback address and the names that pods would use."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    alternatives = [
        *(x509.IPAddress(ipaddress.ip_address(each)) for each in ADDRESSES),
        *(x509.DNSName(each) for each in NAMES),
    ]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        builder(subject, ca.subject, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    """The common part of every certificate."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An hour back: clocks of a host and its virtual machines differ.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
    )


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """The permitted uses of a key; strict verifiers refuse a CA without them."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes a private key that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
