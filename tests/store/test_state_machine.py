"""Memory, SQLite and a real API server get the same random operations. Every result and every watch stream must be the
same for all three, except for the ids, versions and times that they generate."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aliquot.api import Json
from aliquot.errors import PlatformError
from aliquot.store.driver import AnyKind, Change, Document, StoreDriver
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster
from support.stores.namespace import NAMESPACE, POD, TEMPLATE, Watcher, changed, document

T = TypeVar("T")
NAMES = st.sampled_from(["a", "b", "c"])
LABELS = st.dictionaries(st.sampled_from(["team", "env"]), st.sampled_from(["a", "b"]), max_size=2)
FINALIZERS = st.lists(st.sampled_from(["aliquot.dev/one", "aliquot.dev/two"]), unique=True, max_size=2)
SELECTIONS = st.sampled_from(
    [{}, {"labels": "team=a"}, {"labels": "team!=b"}, {"labels": "env in (a, b)"}, {"fields": "metadata.name!=a"}]
)
TEXTS = st.sampled_from(["one", "two", "three"])
SPEC = {"containers": [{"name": "main", "image": "busybox"}]}
_runs = itertools.count()


class StoreUnderTest:
    """One driver with a namespace of its own, and symbols for the ids that it generates."""

    def __init__(self, driver: StoreDriver, namespace: str) -> None:
        self.driver = driver
        self.namespace = namespace
        self._symbols: dict[str, int] = {}
        self.watchers: list[Watcher] = []

    def symbol(self, text: str) -> int:
        """A number for each distinct text, so that generated ids of different drivers can be compared."""
        return self._symbols.setdefault(text, len(self._symbols))

    def plain(self, document: Document) -> Json:
        """The part of a document that must be the same for every driver."""
        metadata = {key: value for key, value in document.metadata.items() if key != "namespace"}
        for key in ("uid", "resourceVersion"):
            metadata[key] = self.symbol(metadata[key])
        for key in ("creationTimestamp", "deletionTimestamp"):
            if key in metadata:
                metadata[key] = "a moment"
        if document.data["kind"] == "Pod":
            # Kubernetes fills in defaults of pods, so only our fields and those that the store sets are compared.
            metadata.pop("generation", None)
            node = (document.data.get("spec") or {}).get("nodeName")
            return {"metadata": metadata, "node": node}
        return {**document.data, "metadata": metadata}


class Machine(RuleBasedStateMachine):
    cluster: Cluster  # set by the test

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._folder = tempfile.TemporaryDirectory()
        # Documents returned so far by name, the newest last; one per driver.
        self._history: dict[tuple[str, str], list[list[Document]]] = {}
        self.stores: list[StoreUnderTest] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    @initialize()
    def begin(self) -> None:
        async def stores() -> list[StoreUnderTest]:
            drivers: list[StoreDriver] = [
                MemoryDriver(),
                SqliteDriver(Path(self._folder.name) / "store.db"),
                KubernetesDriver(kubeconfig.load([self.cluster.kubeconfig])),
            ]
            namespace = f"m{os.getpid()}-{next(_runs)}"
            for driver in drivers:
                await driver.create(NAMESPACE, document(NAMESPACE, namespace))
            return [StoreUnderTest(driver, namespace) for driver in drivers]

        self.stores = self.run(stores())

    # --- one operation, everywhere

    def everywhere(self, kind: AnyKind, name: str, calls: list[Coroutine[Any, Any, Any]]) -> None:
        """Runs one call per driver and compares the results."""

        async def together() -> list[Any]:
            return await asyncio.gather(*calls, return_exceptions=True)

        results = self.run(together())
        answers = [self._answer(store, result) for store, result in zip(self.stores, results, strict=True)]
        assert answers[1:] == answers[:-1], "\n".join(map(repr, answers))
        if isinstance(results[0], Document):
            self._history.setdefault((kind.name, name), []).append(results)

    def _answer(self, store: StoreUnderTest, result: Any) -> Any:
        match result:
            case Document():
                return store.plain(result)
            case PlatformError():
                return type(result).__name__
            case BaseException():
                raise result
            case _:
                return result

    def _seen(self, kind: AnyKind, name: str, age: int) -> list[Document] | None:
        """The documents of `age` results ago."""
        history = self._history.get((kind.name, name))
        return history[max(0, len(history) - 1 - age)] if history else None

    # --- templates

    @rule(name=NAMES, text=TEXTS, labels=LABELS, finalizers=FINALIZERS)
    def create(self, name: str, text: str, labels: dict[str, str], finalizers: list[str]) -> None:
        spec = {"description": text}
        calls = [
            store.driver.create(
                TEMPLATE, document(TEMPLATE, name, store.namespace, spec, labels=labels, finalizers=finalizers)
            )
            for store in self.stores
        ]
        self.everywhere(TEMPLATE, name, calls)

    @rule(name=NAMES)
    def get(self, name: str) -> None:
        self.everywhere(TEMPLATE, name, [store.driver.get(TEMPLATE, name, store.namespace) for store in self.stores])

    @rule(name=NAMES, text=TEXTS, labels=LABELS, age=st.integers(0, 2))
    def update(self, name: str, text: str, labels: dict[str, str], age: int) -> None:
        if seen := self._seen(TEMPLATE, name, age):
            wanted = [changed(document, spec={"description": text}, labels=labels) for document in seen]
            pairs = zip(self.stores, wanted, strict=True)
            self.everywhere(TEMPLATE, name, [store.driver.update(TEMPLATE, document) for store, document in pairs])

    @rule(name=NAMES, keep=FINALIZERS)
    def finalize(self, name: str, keep: list[str]) -> None:
        if seen := self._seen(TEMPLATE, name, 0):
            wanted = [changed(document, finalizers=keep or None) for document in seen]
            pairs = zip(self.stores, wanted, strict=True)
            self.everywhere(TEMPLATE, name, [store.driver.update(TEMPLATE, document) for store, document in pairs])

    @rule(name=NAMES, status=st.sampled_from(["True", "False"]), age=st.integers(0, 1))
    def update_status(self, name: str, status: str, age: int) -> None:
        if seen := self._seen(TEMPLATE, name, age):
            wanted = [
                changed(document, status={"conditions": [{"type": "Ready", "status": status}]}) for document in seen
            ]
            pairs = zip(self.stores, wanted, strict=True)
            self.everywhere(
                TEMPLATE, name, [store.driver.update_status(TEMPLATE, document) for store, document in pairs]
            )

    @rule(
        name=NAMES,
        change=st.sampled_from(
            [
                {},
                {"spec": {"description": "patched"}},
                {"spec": {"description": None}},
                {"spec": {"values": {"image": "i", "compute": {"gpu": 1}}}},
                {"spec": {"values": {"compute": {"gpu": None}}}},
                {"metadata": {"labels": {"team": "a"}}},
                {"metadata": {"labels": {"team": None, "env": "b"}}},
                {"metadata": {"labels": None}},
                {"metadata": {"finalizers": None}},
                {"metadata": {"name": "other"}},
            ]
        ),
        tied=st.booleans(),
        age=st.integers(0, 1),
    )
    def patch(self, name: str, change: Json, tied: bool, age: int) -> None:
        seen = self._seen(TEMPLATE, name, age)
        versions = [document.version for document in seen] if seen and tied else [""] * len(self.stores)
        calls = [
            store.driver.patch(TEMPLATE, name, store.namespace, change, version=version)
            for store, version in zip(self.stores, versions, strict=True)
        ]
        self.everywhere(TEMPLATE, name, calls)

    @rule(name=NAMES, by=st.sampled_from(["name", "uid", "version"]), age=st.integers(0, 1))
    def delete(self, name: str, by: str, age: int) -> None:
        seen = self._seen(TEMPLATE, name, age)
        options: list[dict[str, Any]] = [{} for _ in self.stores]
        if seen and by != "name":
            options = [{by: document.uid if by == "uid" else document.version} for document in seen]
        calls = [
            store.driver.delete(TEMPLATE, name, store.namespace, **option)
            for store, option in zip(self.stores, options, strict=True)
        ]
        self.everywhere(TEMPLATE, name, calls)

    # --- pods

    @rule(name=NAMES)
    def create_pod(self, name: str) -> None:
        calls = [store.driver.create(POD, document(POD, name, store.namespace, SPEC)) for store in self.stores]
        self.everywhere(POD, name, calls)

    @rule(name=NAMES, node=st.sampled_from(["n1", "n2"]), age=st.integers(0, 1))
    def bind(self, name: str, node: str, age: int) -> None:
        if seen := self._seen(POD, name, age):
            change = {"spec": {"nodeName": node}, "metadata": {"annotations": {"aliquot.dev/devices": "[]"}}}
            calls = [
                store.driver.patch(POD, name, store.namespace, change, version=pod.version)
                for store, pod in zip(self.stores, seen, strict=True)
            ]
            self.everywhere(POD, name, calls)

    @rule(name=NAMES, grace=st.sampled_from([None, 0, 5, 60]))
    def delete_pod(self, name: str, grace: int | None) -> None:
        calls = [store.driver.delete(POD, name, store.namespace, grace_seconds=grace) for store in self.stores]
        self.everywhere(POD, name, calls)

    # --- reading

    @rule(kind=st.sampled_from([TEMPLATE, POD]), selection=SELECTIONS)
    def list_everywhere(self, kind: AnyKind, selection: dict[str, str]) -> None:
        async def together() -> list[Any]:
            return await asyncio.gather(*(w.driver.list(kind, w.namespace, **selection) for w in self.stores))

        listings = self.run(together())
        listed = [[w.plain(d) for d in listing.items] for w, listing in zip(self.stores, listings, strict=True)]
        assert listed[1:] == listed[:-1], listed

    @precondition(lambda self: self.stores and len(self.stores[0].watchers) < 4)
    @rule(kind=st.sampled_from([TEMPLATE, POD]), selection=SELECTIONS)
    def watch(self, kind: AnyKind, selection: dict[str, str]) -> None:
        async def begin() -> None:
            for store in self.stores:
                version = (await store.driver.list(kind, store.namespace)).version
                store.watchers.append(Watcher(store.driver, kind, store.namespace, version, **selection))

        self.run(begin())

    @invariant()
    def lists_agree(self) -> None:
        if self.stores:
            self.list_everywhere(TEMPLATE, {})

    # --- the end: every stream, up to the object "end"

    def teardown(self) -> None:
        try:
            if self.stores:
                streams = self.run(self._streams())
                assert streams[1:] == streams[:-1], "\n".join(map(repr, streams))
        finally:
            self.run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._folder.cleanup()

    async def _streams(self) -> list[list[list[Any]]]:
        for store in self.stores:
            labels = {"team": "a", "env": "a"}
            await store.driver.create(TEMPLATE, document(TEMPLATE, "end", store.namespace, {}, labels=labels))
            await store.driver.create(POD, document(POD, "end", store.namespace, SPEC, labels=labels))
        return [[await self._stream(store, watcher) for watcher in store.watchers] for store in self.stores]

    async def _stream(self, store: StoreUnderTest, watcher: Watcher) -> list[Any]:
        seen: list[Any] = []
        while True:
            change = await watcher.next()
            assert change.document is not None
            if change.document.name == "end":
                return seen
            if change.document.data["kind"] == "Pod" and _goes_at_once(change):
                continue
            uid = store.symbol(change.document.uid)
            if change.type == "DELETED":
                seen.append(("DELETED", change.document.name, uid))
            else:
                seen.append((change.type, store.plain(change.document)))

    async def _close(self) -> None:
        for store in self.stores:
            for watcher in store.watchers:
                await watcher.close()
            await store.driver.close()


def _goes_at_once(change: Change) -> bool:
    """Whether a change only sets the deletion timestamp before Kubernetes removes the pod. Other drivers need not show
    it."""
    assert change.document is not None
    return change.type == "MODIFIED" and change.document.metadata.get("deletionGracePeriodSeconds") == 0


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@pytest.mark.kube
@pytest.mark.xdist_group("kube")
def test_three_drivers_agree(cluster_with_kinds: Cluster) -> None:
    """Three drivers give the same results and watch streams for the same random operations."""
    Machine.cluster = cluster_with_kinds
    run_state_machine_as_test(Machine, settings=_settings(60, 40))


@pytest.mark.soak
def test_three_drivers_agree_for_long(cluster_with_kinds: Cluster) -> None:
    """The same, for thousands of cases."""
    Machine.cluster = cluster_with_kinds
    run_state_machine_as_test(Machine, settings=_settings(1500, 60))
