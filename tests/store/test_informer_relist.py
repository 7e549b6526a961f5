"""An informer that fell behind lists again and compares."""

from __future__ import annotations

from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.informer import Informer, Key
from support.stores.namespace import NAMESPACE, TEMPLATE, StoreNamespace, document
from support.stores.running import running
from support.waiting import eventually


async def test_falls_behind_and_catches_up() -> None:
    """Listeners get every difference, although the watch missed all changes."""
    driver = MemoryDriver(log_length=3)
    await driver.create(NAMESPACE, document(NAMESPACE, "n"))
    place = StoreNamespace(driver, "n", "memory")
    kept = await place.create("kept", description="1")
    await place.create("gone")
    heard: list[tuple[str, str | None, str | None]] = []

    def listen(key: Key, old: str | None, new: str | None) -> None:
        heard.append((key[1], old, new))

    informer = Informer(driver, TEMPLATE, lambda document: str(document.data["spec"]["description"]))
    informer.listen(listen)
    async with running(informer.run()):
        await informer.synced.wait()
    # Nobody reads now. More happens than the log can hold.
    for number in range(2, 8):
        kept = await place.describe(kept, str(number))
    await place.delete("gone")
    await place.create("new", description="fresh")
    heard.clear()
    async with running(informer.run()):
        await eventually(lambda: _is(len(heard) == 3))
    assert sorted(heard) == [("gone", "first", None), ("kept", "1", "7"), ("new", None, "fresh")]
    assert sorted(informer) == ["7", "fresh"]


async def test_unreadable_object_does_not_disturb(embedded: StoreNamespace) -> None:
    """An object that cannot be decoded is left out of the cache; the others are in it."""
    from aliquot.api import Template
    from aliquot.store.informer import typed

    await embedded.create("good")
    bad = document(TEMPLATE, "bad", embedded.namespace, {"values": {"compute": {"gpu": "many"}}})
    await embedded.driver.create(TEMPLATE, bad)
    informer = typed(embedded.driver, Template)
    async with running(informer.run()):
        await informer.synced.wait()
    assert [template.metadata.name for template in informer] == ["good"]


async def _is(condition: bool) -> bool:
    return condition
