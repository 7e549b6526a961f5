"""The webhook's serving certificate and the private authority that signs it, kept in a Secret.

All replicas serve the same certificate. A replica that finds it missing, close to its end, or without the name that the
API server calls makes the next one and writes it with the version that it read. A replica that loses that race uses the
winner's.

    Certificates   what the Secret holds, as PEM
    renew          pure: what the Secret must hold now
    ensure         reads the Secret, and renews it if necessary
"""

from __future__ import annotations

import base64
import ipaddress
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aliquot.api import Json
from aliquot.backends.kubernetes.unstructured_kinds import SECRET
from aliquot.errors import Conflict, Exists, NotFound
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.driver import Document, StoreDriver

SECRET_NAME = "aliquot-webhook"  # noqa: S105  # the name of an object
_AUTHORITY_DAYS, _SERVING_DAYS = 3650, 365
_RENEW_BEFORE = 1 / 3  # of a lifetime: renewed when less than this is left
_SKEW = timedelta(minutes=10)  # the clocks of the cluster may be behind
_KEYS = {
    "authority": "ca.crt",
    "authority_key": "ca.key",
    "before": "before.crt",
    "serving": "tls.crt",
    "key": "tls.key",
}


@dataclass(frozen=True, slots=True)
class Certificates:
    authority: str = ""
    authority_key: str = ""
    # The previous authority: another replica may still serve a certificate that it signed.
    before: str = ""
    serving: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return "Certificates(***)"

    @property
    def bundle(self) -> bytes:
        """The authorities that the API server has to trust, as PEM."""
        return (self.authority + self.before).encode()

    def load_into(self, context: ssl.SSLContext) -> None:
        """New connections are served with this certificate."""
        # The ssl module reads keys from files only; this file is readable by this user alone.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.key + self.serving)
            file.flush()
            context.load_cert_chain(file.name)


def renew(current: Certificates, names: Iterable[str], now: datetime) -> Certificates:
    """`current` itself if it is still good; otherwise its replacement.

    `names` are the hosts and addresses that the certificate must cover. Names that it covered before are kept.
    """
    names = set(names)
    if not current.authority or _is_old(current.authority, now):
        key = ec.generate_private_key(ec.SECP256R1())
        authority = _authority(key, now)
        current = Certificates(authority=_pem(authority), authority_key=_key_pem(key), before=current.authority)
    if current.serving and names <= _names(current.serving) and not _is_old(current.serving, now):
        return current
    names |= _names(current.serving) if current.serving else set()
    return _with_serving(current, names, now)


async def ensure(driver: StoreDriver, names: Iterable[str], now: datetime | None = None) -> Certificates:
    """The certificates that all replicas serve, created or renewed if necessary."""
    names = tuple(names)
    while True:
        try:
            secret: Document | None = await driver.get(SECRET, SECRET_NAME, SYSTEM_NAMESPACE)
        except NotFound:
            secret = None
        current = _read(secret.data if secret else {})
        wanted = renew(current, names, now or datetime.now(UTC))
        if wanted == current:
            return wanted
        try:
            await _write(driver, wanted, secret)
            return wanted
        except (Exists, Conflict):
            continue  # another replica was faster: read again


async def _write(driver: StoreDriver, wanted: Certificates, secret: Document | None) -> None:
    data = {_KEYS[name]: base64.b64encode(getattr(wanted, name).encode()).decode() for name in _KEYS}
    if secret is None:
        metadata = {"name": SECRET_NAME, "namespace": SYSTEM_NAMESPACE}
        await driver.create(SECRET, Document({"metadata": metadata, "type": "Opaque", "data": data}))
    else:
        await driver.update(SECRET, Document({**secret.data, "data": data}))


def _read(secret: Json) -> Certificates:
    data = secret.get("data") or {}
    try:
        values = {name: base64.b64decode(data.get(key) or "").decode() for name, key in _KEYS.items()}
        for name in ("authority", "serving"):
            if values[name]:
                x509.load_pem_x509_certificate(values[name].encode())
        return Certificates(**values)
    except ValueError:
        return Certificates()  # unreadable: replaced


def _is_old(pem: str, now: datetime) -> bool:
    certificate = x509.load_pem_x509_certificate(pem.encode())
    left = certificate.not_valid_after_utc - now
    return left < (certificate.not_valid_after_utc - certificate.not_valid_before_utc) * _RENEW_BEFORE


def _names(pem: str) -> set[str]:
    certificate = x509.load_pem_x509_certificate(pem.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aliquot webhook authority")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        _builder(name, name, key, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _with_serving(current: Certificates, names: set[str], now: datetime) -> Certificates:
    authority = x509.load_pem_x509_certificate(current.authority.encode())
    signer = serialization.load_pem_private_key(current.authority_key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "the authority has an EC key"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aliquot webhook")])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    serving = (
        _builder(subject, authority.subject, key, now, _SERVING_DAYS)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Certificates(current.authority, current.authority_key, current.before, _pem(serving), _key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
