"""The webhook's certificate: shared by replicas, renewed in time, and valid for every name that is needed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from cryptography import x509

from aliquot.api import KINDS, Namespace
from aliquot.backends.kubernetes.certificates import SECRET_NAME, Certificates, ensure, renew
from aliquot.backends.kubernetes.unstructured_kinds import SECRET
from aliquot.store.driver import Document
from aliquot.store.drivers.memory import MemoryDriver

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("hook.runai.svc", "127.0.0.1")


async def memory() -> MemoryDriver:
    driver = MemoryDriver()
    await driver.create(KINDS.of(Namespace), Document({"metadata": {"name": "runai"}}))
    return driver


def test_first() -> None:
    """The first one is signed by its authority and valid for names and addresses."""
    current = renew(Certificates(), NAMES, NOW)

    serving, authority = (x509.load_pem_x509_certificate(pem.encode()) for pem in (current.serving, current.authority))
    serving.verify_directly_issued_by(authority)
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == set(NAMES)
    assert current.bundle == current.authority.encode()


def test_nothing_to_do() -> None:
    """A valid certificate is kept."""
    current = renew(Certificates(), NAMES, NOW)
    assert renew(current, NAMES[:1], NOW + timedelta(days=100)) == current


def test_renewed_early() -> None:
    """With a third of its lifetime left it is renewed, by the same authority."""
    current = renew(Certificates(), NAMES, NOW)
    later = renew(current, NAMES, NOW + timedelta(days=250))

    assert later.serving != current.serving
    assert later.authority == current.authority


def test_another_name() -> None:
    """A replica with another name adds it, and the other names stay valid."""
    current = renew(Certificates(), ("a",), NOW)
    both = renew(current, ("b",), NOW)

    assert renew(both, ("a",), NOW) == both
    assert renew(both, ("b",), NOW) == both


def test_authority_renewed() -> None:
    """When the authority is renewed the API server trusts the old and the new one."""
    current = renew(Certificates(), NAMES, NOW)
    later = renew(current, NAMES, NOW + timedelta(days=3000))

    assert later.authority != current.authority
    assert later.bundle == (later.authority + current.authority).encode()


def test_keys_are_not_shown() -> None:
    """Keys are not printed."""
    assert "KEY" not in repr(renew(Certificates(), NAMES, NOW))


async def test_replicas_share() -> None:
    """Replicas that start at once end up with the same certificate."""
    driver = await memory()

    current = await asyncio.gather(*(ensure(driver, NAMES) for _ in range(5)))

    assert len({certificates.serving for certificates in current}) == 1


async def test_unreadable_secret() -> None:
    """A Secret that cannot be read is replaced."""
    driver = await memory()
    metadata = {"name": SECRET_NAME, "namespace": "runai"}
    await driver.create(SECRET, Document({"metadata": metadata, "data": {"tls.crt": "bm90aGluZw=="}}))

    current = await ensure(driver, NAMES)

    assert await ensure(driver, NAMES) == current
