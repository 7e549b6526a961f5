"""The certificate of the webhook: shared, renewed in time, good for every name that is needed."""

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
    """The first one is signed by its authority and good for names and addresses."""
    made = renew(Certificates(), NAMES, NOW)

    serving, authority = (x509.load_pem_x509_certificate(pem.encode()) for pem in (made.serving, made.authority))
    serving.verify_directly_issued_by(authority)
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == set(NAMES)
    assert made.bundle == made.authority.encode()


def test_nothing_to_do() -> None:
    """As long as it is good it stays."""
    made = renew(Certificates(), NAMES, NOW)
    assert renew(made, NAMES[:1], NOW + timedelta(days=100)) == made


def test_renewed_early() -> None:
    """With a third of its time left the next is made, by the same authority."""
    made = renew(Certificates(), NAMES, NOW)
    later = renew(made, NAMES, NOW + timedelta(days=250))

    assert later.serving != made.serving
    assert later.authority == made.authority


def test_another_name() -> None:
    """A replica with another name adds it, and those of the others stay good."""
    made = renew(Certificates(), ("a",), NOW)
    both = renew(made, ("b",), NOW)

    assert renew(both, ("a",), NOW) == both
    assert renew(both, ("b",), NOW) == both


def test_authority_renewed() -> None:
    """When the authority's time comes the API server trusts the old one and the new one."""
    made = renew(Certificates(), NAMES, NOW)
    later = renew(made, NAMES, NOW + timedelta(days=3000))

    assert later.authority != made.authority
    assert later.bundle == (later.authority + made.authority).encode()


def test_keys_are_not_shown() -> None:
    """Whoever prints it sees no key."""
    assert "KEY" not in repr(renew(Certificates(), NAMES, NOW))


async def test_replicas_share() -> None:
    """Replicas that start at once end up with the same certificate."""
    driver = await memory()

    made = await asyncio.gather(*(ensure(driver, NAMES) for _ in range(5)))

    assert len({one.serving for one in made}) == 1


async def test_spoilt_secret() -> None:
    """A Secret that somebody spoilt is written anew."""
    driver = await memory()
    metadata = {"name": SECRET_NAME, "namespace": "runai"}
    await driver.create(SECRET, Document({"metadata": metadata, "data": {"tls.crt": "bm90aGluZw=="}}))

    made = await ensure(driver, NAMES)

    assert await ensure(driver, NAMES) == made
