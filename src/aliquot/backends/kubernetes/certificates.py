"""The certificate by which the API server knows our webhook: an authority of our own, kept in a Secret.

Every replica serves with the same one. Whoever finds it missing, about to end, or without the name the API server calls
makes the next and writes it with the version that was read; who loses that race takes the winner's.

    Certificates    what the Secret holds, as PEM
    renewed         what it must hold now; itself when nothing is to be done
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
_EARLY = 1 / 3  # of a lifetime: when so much is left the next is made
_SKEW = timedelta(minutes=10)  # clocks of the cluster may be behind ours
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
    # The authority before this one: what it signed may still be served by another replica.
    before: str = ""
    serving: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return "Certificates(***)"

    @property
    def bundle(self) -> bytes:
        """Whom the API server is to trust."""
        return (self.authority + self.before).encode()

    def load_into(self, context: ssl.SSLContext) -> None:
        """Connections from now on are served with it."""
        # The library reads keys from files only; this one has no name that others could open.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.key + self.serving)
            file.flush()
            context.load_cert_chain(file.name)


def renew(there: Certificates, names: Iterable[str], now: datetime) -> Certificates:
    """`names`: hosts and addresses that it must be good for; those it was good for stay."""
    names = set(names)
    if not there.authority or _is_old(there.authority, now):
        key = ec.generate_private_key(ec.SECP256R1())
        made = _authority(key, now)
        there = Certificates(authority=_pem(made), authority_key=_key_pem(key), before=there.authority)
    if there.serving and names <= _names(there.serving) and not _is_old(there.serving, now):
        return there
    names |= _names(there.serving) if there.serving else set()
    return _with_serving(there, names, now)


async def ensure(driver: StoreDriver, names: Iterable[str], now: datetime | None = None) -> Certificates:
    """What all replicas serve with, made or renewed where it must be."""
    names = tuple(names)
    while True:
        try:
            seen: Document | None = await driver.get(SECRET, SECRET_NAME, SYSTEM_NAMESPACE)
        except NotFound:
            seen = None
        there = _read(seen.data if seen else {})
        wanted = renew(there, names, now or datetime.now(UTC))
        if wanted == there:
            return wanted
        try:
            await _write(driver, wanted, seen)
            return wanted
        except (Exists, Conflict):
            continue  # another replica was faster: look again


async def _write(driver: StoreDriver, wanted: Certificates, seen: Document | None) -> None:
    data = {_KEYS[name]: base64.b64encode(getattr(wanted, name).encode()).decode() for name in _KEYS}
    if seen is None:
        metadata = {"name": SECRET_NAME, "namespace": SYSTEM_NAMESPACE}
        await driver.create(SECRET, Document({"metadata": metadata, "type": "Opaque", "data": data}))
    else:
        await driver.update(SECRET, Document({**seen.data, "data": data}))


def _read(secret: Json) -> Certificates:
    data = secret.get("data") or {}
    try:
        parts = {name: base64.b64decode(data.get(key) or "").decode() for name, key in _KEYS.items()}
        for name in ("authority", "serving"):
            if parts[name]:
                x509.load_pem_x509_certificate(parts[name].encode())
        return Certificates(**parts)
    except ValueError:
        return Certificates()  # spoilt by somebody: made anew


def _is_old(pem: str, now: datetime) -> bool:
    found = x509.load_pem_x509_certificate(pem.encode())
    left = found.not_valid_after_utc - now
    return left < (found.not_valid_after_utc - found.not_valid_before_utc) * _EARLY


def _names(pem: str) -> set[str]:
    found = x509.load_pem_x509_certificate(pem.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
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


def _with_serving(there: Certificates, names: set[str], now: datetime) -> Certificates:
    authority = x509.load_pem_x509_certificate(there.authority.encode())
    signer = serialization.load_pem_private_key(there.authority_key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "made by us"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aliquot webhook")])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        _builder(name, authority.subject, key, now, _SERVING_DAYS)
        .add_extension(x509.SubjectAlternativeName([_name(one) for one in sorted(names)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Certificates(there.authority, there.authority_key, there.before, _pem(made), _key_pem(key))


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


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
