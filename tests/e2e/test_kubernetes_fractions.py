"""GPU fractions on a real API server; the test does what a kubelet would do."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from aliquot import labels
from aliquot.api import Node, Pod, shares_of, shares_text
from aliquot.backends.kubernetes.reservations.gc import ReservationCollector
from aliquot.backends.kubernetes.reservations.pod import GpuClaim, claims_annotation, read_claims
from aliquot.backends.kubernetes.unstructured_kinds import CONFIG_MAP
from aliquot.errors import Conflict, Invalid, NotFound, Unavailable
from aliquot.store.driver import Document
from aliquot.store.informer import Informers
from support.kubernetes.cluster import Cluster
from support.kubernetes.gpu_sharing import NODE, Crashed, CrashingDriver, SharingHarness, half, sharing, webhook
from support.kubernetes.kinds import POD
from support.stores.running import running
from support.waiting import eventually

pytestmark = pytest.mark.kube

HALF = {labels.GPU_FRACTION: "0.5"}


@pytest.fixture
def node_name() -> str:
    """The name of a node that no other test uses."""
    return f"node-{uuid.uuid4().hex[:8]}"


async def create_pending(harness: SharingHarness, namespace: str, pod: str = "p", **annotations: str) -> Pod:
    """A pending pod with a fraction and the name of its ConfigMap, as the webhook leaves it."""
    return await harness.create_pod(
        namespace, pod, **(annotations or HALF), **{labels.GPU_CONFIG: f"aliquot-gpu-{pod}"}
    )


async def test_whole_gpus_are_bound_at_once(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A pod with whole GPUs, or none, is bound without a reservation."""
    async with sharing(cluster) as harness:
        pod = await harness.create_pod(namespace, "p")
        await harness.binder.bind(pod, await harness.create_node(node_name), [half(1, milli=1000)])

        bound = await harness.store.get(Pod, "p", namespace)
        assert bound.spec.node_name == node_name
        assert [share.index for share in shares_of(bound)] == [1]


async def test_bind(cluster: Cluster, namespace: str, node_name: str) -> None:
    """Before a pod with a fraction is bound its GPU is reserved, and its ConfigMap names the GPU and the limits."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(
            await create_pending(harness, namespace), await harness.create_node(node_name), half()
        )
        config, reservation = await harness.config_map(bound), await harness.reservation(node_name)

    assert bound.spec.node_name == node_name
    assert [share.uuid for share in shares_of(bound)] == [f"simulated-{node_name}-0"]
    assert "limit=17044602880 " in config["data"]["limits"]  # half of 32510 MiB
    assert f"tenant {bound.metadata.uid}" in config["data"]["limits"]
    assert config["data"]["NVIDIA_VISIBLE_DEVICES"] == f"simulated-{node_name}-0"
    assert config["immutable"]
    assert reservation.spec.node_name == node_name
    assert list(read_claims(reservation)) == [bound.metadata.uid]


async def test_config_map_is_deleted_with_the_pod(cluster: Cluster, namespace: str, node_name: str) -> None:
    """When the pod is gone its ConfigMap is garbage-collected."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(
            await create_pending(harness, namespace), await harness.create_node(node_name), half()
        )
        await harness.remove(bound)

        async def collected() -> bool:
            try:
                await harness.config_map(bound)
            except NotFound:
                return True
            return False

        await eventually(collected)


async def test_one_reservation_for_all_fractions(cluster: Cluster, namespace: str, node_name: str) -> None:
    """Fractions of one GPU share its reservation, which is deleted after the last of them."""
    async with sharing(cluster) as harness:
        await harness.create_node(node_name)
        pods = [await create_pending(harness, namespace, f"p{i}", **{"gpu-fraction": "0.25"}) for i in range(4)]
        bound = await asyncio.gather(*(harness.bind(pod, node_name, half(milli=250)) for pod in pods))
        reservation = await harness.reservation(node_name)
        assert set(read_claims(reservation)) == {pod.metadata.uid for pod in pods}

        for pod in bound[:3]:
            await harness.remove(pod)
        await eventually(lambda: _has_claims(harness, node_name, {bound[3].metadata.uid}))
        assert not await harness.is_deleted(reservation)

        await harness.set_phase(bound[3], "Succeeded")
        await eventually(lambda: harness.is_deleted(reservation))


async def _has_claims(harness: SharingHarness, node: str, uids: set[str]) -> bool:
    return set(read_claims(await harness.reservation(node))) == uids


async def test_several_devices(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A pod with fractions of two GPUs has two reservations, and limits for both."""
    async with sharing(cluster) as harness:
        pod = await create_pending(harness, namespace, **HALF, **{labels.GPU_DEVICES: "2"})
        bound = await harness.bind(pod, await harness.create_node(node_name), half(0), half(1))
        config = await harness.config_map(bound)

    assert config["data"]["NVIDIA_VISIBLE_DEVICES"] == f"simulated-{node_name}-0,simulated-{node_name}-1"
    assert config["data"]["limits"].count("\ngpu ") == 2


async def test_memory(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A requested amount of memory is the limit, unchanged."""
    async with sharing(cluster) as harness:
        pod = await create_pending(harness, namespace, **{labels.GPU_MEMORY_MIB: "4096"})
        bound = await harness.bind(pod, await harness.create_node(node_name), half(milli=125, memory_mib=4096))
        config = await harness.config_map(bound)

    assert f"limit={4096 << 20} " in config["data"]["limits"]


async def test_node_refuses(cluster: Cluster, namespace: str, node_name: str) -> None:
    """If the node refuses the reservation, the pod is not bound and the reservation is deleted."""
    async with sharing(cluster) as harness:
        pod = await create_pending(harness, namespace)
        binding = asyncio.create_task(harness.binder.bind(pod, await harness.create_node(node_name), [half()]))
        reservation = await harness.reservation(node_name)
        await harness.set_phase(reservation, "Failed", reason="UnexpectedAdmissionError", message="no devices left")

        with pytest.raises((Unavailable, Conflict), match=r"not free: no devices left|Precondition failed"):
            await binding
        await eventually(lambda: harness.is_deleted(reservation))
        assert not (await harness.store.get(Pod, "p", namespace)).spec.node_name


async def test_slow_reservation(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A bind gives up with a reason if its GPU is not reserved in time; the next attempt uses the same reservation."""
    async with sharing(cluster, hold_seconds=0.3, idle_seconds=3600.0) as harness:
        pod = await create_pending(harness, namespace)
        with pytest.raises(Unavailable, match=f"GPU 0 of node {node_name} is not reserved yet"):
            await harness.binder.bind(pod, await harness.create_node(node_name), [half()])
        reservation = await harness.reservation(node_name)
        await harness.set_phase(reservation)
        pods = harness.informers.of(Pod)
        await eventually(lambda: (pod := pods.get(*key_of(reservation))) is not None and pod.status.phase == "Running")

        await harness.binder.bind(await harness.store.get(Pod, "p", namespace), node_name, [half()])

        assert (await harness.store.get(Pod, "p", namespace)).spec.node_name == node_name
        assert (await harness.reservation(node_name)).metadata.uid == reservation.metadata.uid


def key_of(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name, pod.metadata.namespace


async def test_binds_do_not_wait_for_each_other(cluster: Cluster, namespace: str, node_name: str) -> None:
    """While one bind waits for its GPU, other binds proceed."""
    async with sharing(cluster) as harness:
        await harness.create_node(node_name)
        slow = asyncio.create_task(harness.binder.bind(await create_pending(harness, namespace), node_name, [half(0)]))
        await harness.reservation(node_name, 0)

        await harness.bind(await create_pending(harness, namespace, "q"), node_name, half(1))
        assert not slow.done()
        await harness.set_phase(await harness.reservation(node_name, 0))
        await slow


async def test_changed_pod_is_not_bound(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A pod that changed since it was scheduled is not bound, and its claim ends."""
    async with sharing(cluster) as harness:
        pod = await create_pending(harness, namespace)
        await harness.driver.patch(POD, "p", namespace, {"metadata": {"labels": {"new": "yes"}}})

        with pytest.raises(Conflict):
            await harness.bind(pod, await harness.create_node(node_name), half())
        reservation = await harness.reservation(node_name)
        await eventually(lambda: harness.is_deleted(reservation))


async def test_claim_of_a_pending_pod_survives_a_restart(cluster: Cluster, namespace: str, node_name: str) -> None:
    """After a kill between claim and binding the GPU is still reserved, and the next process can bind."""
    async with sharing(cluster) as harness:
        pod = await create_pending(harness, namespace)
        await harness.create_node(node_name)
        binding = asyncio.create_task(harness.binder.reservations.acquire(pod, node_name, 0))
        reservation = await harness.reservation(node_name)
        await harness.set_phase(reservation)
        await binding

    async with sharing(cluster) as harness:  # another process
        await harness.collector.reconcile((labels.RESERVATION_NAMESPACE, reservation.metadata.name))
        assert not await harness.is_deleted(reservation)
        await harness.binder.bind(pod, node_name, [half()])
        assert (await harness.store.get(Pod, "p", namespace)).spec.node_name == node_name


async def test_new_leader_breaks_claims_of_pending_pods(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A new leader breaks the claims that its predecessor made; only claims of bound pods stay."""
    async with sharing(cluster, claim_seconds=3600.0) as harness:
        bound = await harness.bind(
            await create_pending(harness, namespace, "bound"), await harness.create_node(node_name), half(0)
        )
        pod = await create_pending(harness, namespace)
        claimed = asyncio.create_task(harness.binder.reservations.acquire(pod, node_name, 1))
        abandoned = await harness.reservation(node_name, 1)
        await harness.set_phase(abandoned)
        await claimed

    async with sharing(cluster, claim_seconds=3600.0) as harness:  # another process
        await eventually(lambda: harness.informers.of(Pod).get("p", namespace))
        await harness.binder.abandon_unfinished()
        await eventually(lambda: harness.is_deleted(abandoned))
        assert list(read_claims(await harness.reservation(node_name))) == [bound.metadata.uid]
        with pytest.raises(Conflict):  # the predecessor's binding may still be in flight
            await harness.driver.bind("p", namespace, node_name, {}, version=pod.metadata.version)
        again = await harness.store.get(Pod, "p", namespace)
        assert (await harness.bind(again, node_name, half(0))).spec.node_name == node_name


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_killed_between_writes(cluster: Cluster, namespace: str, node_name: str, writes: int) -> None:
    """Killed after any write of a bind, the next process finishes it: one reservation, one claim, correct limits."""
    async with sharing(cluster, driver_type=CrashingDriver) as harness:
        assert isinstance(harness.driver, CrashingDriver)
        pod = await create_pending(harness, namespace)
        await harness.create_node(node_name)
        harness.driver.writes_left = writes
        binding = asyncio.create_task(harness.binder.bind(pod, node_name, [half()]))
        if writes > 1:
            await harness.set_phase(await harness.reservation(node_name))
        with pytest.raises(Crashed):
            await binding

    async with sharing(cluster) as harness:
        seen = await harness.store.get(Pod, "p", namespace)
        assert bool(seen.spec.node_name) is (writes == 4)
        if not seen.spec.node_name:
            seen = await harness.bind(pod, node_name, half())
        reservation = await harness.reservation(node_name)
        assert seen.spec.node_name == node_name
        assert list(read_claims(reservation)) == [seen.metadata.uid]
        assert [share.uuid for share in shares_of(reservation)] == [share.uuid for share in shares_of(seen)]
        assert f"tenant {seen.metadata.uid}" in (await harness.config_map(seen))["data"]["limits"]


async def test_expired_claim_is_broken(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A claim that is never used expires, and no binding can use it afterwards."""
    async with sharing(cluster, claim_seconds=0.2) as harness:
        pod = await create_pending(harness, namespace)
        await harness.create_node(node_name)
        claimed = asyncio.create_task(harness.binder.reservations.acquire(pod, node_name, 0))
        reservation = await harness.reservation(node_name)
        await harness.set_phase(reservation)
        await claimed

        await eventually(lambda: harness.is_deleted(reservation))
        with pytest.raises(Conflict):
            await harness.driver.bind("p", namespace, node_name, {}, version=pod.metadata.version)


async def test_abandoned_before_it_ran(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A reservation whose binder went away before it ran is released once it runs."""
    async with sharing(cluster, preparing_seconds=3600.0) as harness:
        pod = await create_pending(harness, namespace)
        claimed = asyncio.create_task(harness.binder.reservations.acquire(pod, await harness.create_node(node_name), 0))
        reservation = await harness.reservation(node_name)
        claimed.cancel()
        await harness.driver.patch(POD, "p", namespace, {"metadata": {"labels": {"changed": "true"}}})
        await harness.set_phase(reservation)
        await eventually(lambda: harness.is_deleted(reservation))


async def test_failed_bind_breaks_its_claim(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A GPU that could not be reserved in time does not stay claimed by the pod that wanted it."""
    async with sharing(cluster, hold_seconds=0.2, claim_seconds=3600.0) as harness:
        pod = await create_pending(harness, namespace)
        with pytest.raises(Unavailable):
            await harness.binder.bind(pod, await harness.create_node(node_name), [half()])
        reservation = await harness.reservation(node_name)
        await harness.set_phase(reservation)
        await eventually(lambda: harness.is_deleted(reservation))


async def test_claim_beats_deletion(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A reservation that was read without claims is not deleted if a claim was added since."""
    async with sharing(cluster, idle_seconds=3600.0, preparing_seconds=3600.0) as harness:
        pod = await create_pending(harness, namespace)
        binding = asyncio.create_task(harness.binder.bind(pod, await harness.create_node(node_name), [half()]))
        reservation = await harness.reservation(node_name)
        await harness.set_phase(reservation)
        await binding

        with pytest.raises(Conflict):
            await harness.binder.reservations.delete(reservation)  # in the version before the binding
        assert not await harness.is_deleted(reservation)


def _is_leaving(pod: Pod | None) -> bool:
    return pod is None or pod.metadata.deleted is not None


async def test_leaving_reservation_cannot_be_claimed(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A GPU that is being released is not handed out; the next plan finds it free or reserved."""
    async with sharing(cluster) as harness:
        pod = await create_pending(harness, namespace)
        first = asyncio.create_task(harness.binder.reservations.acquire(pod, await harness.create_node(node_name), 0))
        reservation = await harness.reservation(node_name)
        await harness.set_phase(reservation)
        await first
        await harness.driver.delete(POD, *key_of(reservation), grace_seconds=30)
        await eventually(lambda: _is_leaving(harness.informers.of(Pod).get(*key_of(reservation))))
        with pytest.raises(Unavailable, match=r"being released"):
            await harness.binder.bind(pod, node_name, [half()])
        await harness.remove(reservation)
        await eventually(lambda: harness.informers.of(Pod).get(*key_of(reservation)) is None)

        again = await harness.store.get(Pod, "p", namespace)
        assert (await harness.bind(again, node_name, half())).spec.node_name == node_name


async def test_adopted_after_a_restart(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A reservation that lost its last user while no process ran is released by the next process."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(
            await create_pending(harness, namespace), await harness.create_node(node_name), half()
        )
        reservation = await harness.reservation(node_name)
    async with sharing(cluster, idle_seconds=3600.0) as harness:
        await harness.remove(bound)
    async with sharing(cluster) as harness:
        await eventually(lambda: harness.is_deleted(reservation))


async def test_nodes_not_synced_yet(cluster: Cluster, namespace: str, node_name: str) -> None:
    """Before the nodes are synced no node counts as gone."""
    async with sharing(cluster) as harness:
        await harness.bind(await create_pending(harness, namespace), await harness.create_node(node_name), half())
        reservation = await harness.reservation(node_name)
        informers = Informers(harness.driver)
        early = ReservationCollector(harness.driver, informers, harness.binder.reservations, harness.settings)
        async with running(informers.of(Pod).run()):
            await informers.of(Pod).synced.wait()
            reconciling = asyncio.create_task(
                early.reconcile((reservation.metadata.namespace, reservation.metadata.name))
            )
            await asyncio.wait([reconciling], timeout=0.2)
            async with running(informers.of(Node).run()):
                await reconciling
            assert not await harness.is_deleted(reservation)


async def test_dead_claims_are_dropped(cluster: Cluster, namespace: str, node_name: str) -> None:
    """Claims of pods that do not exist do not keep a GPU reserved."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(
            await create_pending(harness, namespace), await harness.create_node(node_name), half()
        )
        reservation = await harness.reservation(node_name)
        claims = {**read_claims(reservation), "nobody": GpuClaim("gone", namespace, "1")}
        await harness.binder.reservations.annotate(reservation, labels.GPU_CLAIMS, claims_annotation(claims))

        await eventually(lambda: _has_claims(harness, node_name, {bound.metadata.uid}))


async def test_reservation_deleted_by_a_user(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A reservation that a user deletes under a running job is created again, also by the next process."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(
            await create_pending(harness, namespace), await harness.create_node(node_name), half()
        )
        first = await harness.reservation(node_name)
        await harness.remove(first)
        await wait_recreated(harness, first)
        second = await harness.reservation(node_name)
        assert list(read_claims(second)) == [bound.metadata.uid]

    pod_name, space = key_of(second)
    await asyncio.to_thread(cluster.kubectl, "delete", "pod", "-n", space, pod_name, "--grace-period=0", "--force")
    async with sharing(cluster) as harness:
        third = await harness.reservation(node_name)
        await harness.set_phase(third)
        assert third.metadata.uid != second.metadata.uid
        assert not await harness.is_deleted(bound)


async def wait_recreated(harness: SharingHarness, first: Pod) -> None:
    pods = harness.informers.of(Pod)
    await eventually(lambda: (pod := pods.get(*key_of(first))) and pod.metadata.uid != first.metadata.uid)


async def test_recreated_reservation_gets_another_gpu(cluster: Cluster, namespace: str, node_name: str) -> None:
    """If the node assigns another GPU to the new reservation, the job is stopped: its own GPU may be given away."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(
            await create_pending(harness, namespace), await harness.create_node(node_name), half()
        )
        first = await harness.reservation(node_name)
        share = replace(shares_of(bound)[0], uuid="GPU-another")
        change = {"metadata": {"annotations": {labels.DEVICES: shares_text([share])}}}
        await harness.driver.patch(POD, "p", namespace, change)
        pods = harness.informers.of(Pod)
        await eventually(
            lambda: (
                (pod := pods.get("p", namespace)) is not None and "another" in pod.metadata.annotations[labels.DEVICES]
            )
        )
        await harness.remove(first)
        await wait_recreated(harness, first)
        await harness.set_phase(await harness.reservation(node_name))

        await eventually(lambda: harness.is_deleted(bound))


async def test_node_gone(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A reservation is deleted with its node at once, although no kubelet responds."""
    async with sharing(cluster) as harness:
        await harness.bind(await create_pending(harness, namespace), await harness.create_node(node_name), half())
        reservation = await harness.reservation(node_name)
        await harness.driver.delete(NODE, node_name)

        async def removed() -> bool:
            try:
                await harness.store.get(Pod, *key_of(reservation))
            except NotFound:
                return True
            return False

        await eventually(removed)


async def test_config_map_of_an_earlier_attempt(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A ConfigMap of an earlier attempt is replaced; one that Aliquot does not manage is left alone."""
    async with sharing(cluster) as harness:
        await harness.create_node(node_name)
        pod = await create_pending(harness, namespace)
        foreign = {"metadata": {"name": "aliquot-gpu-p", "namespace": namespace}, "data": {"limits": "old"}}
        await harness.driver.create(CONFIG_MAP, Document(foreign))
        with pytest.raises(Invalid, match="is not managed by Aliquot"):
            await harness.bind(pod, node_name, half())

        change = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "aliquot"}}}
        await harness.driver.patch(CONFIG_MAP, "aliquot-gpu-p", namespace, change)
        bound = await harness.bind(await harness.store.get(Pod, "p", namespace), node_name, half())
        assert "tenant" in (await harness.config_map(bound))["data"]["limits"]


async def test_no_webhook(cluster: Cluster, namespace: str, node_name: str) -> None:
    """Without a webhook pods with fractions are not bound."""
    async with sharing(cluster) as harness:
        pod = await harness.create_pod(namespace, "p", **HALF)
        with pytest.raises(Invalid, match="has no limit on its GPU fraction; the webhook is not installed"):
            await harness.binder.bind(pod, await harness.create_node(node_name, simulated=False), [half()])


async def test_pod_from_before_the_webhook(cluster: Cluster, namespace: str, node_name: str) -> None:
    """A pod that is older than the webhook is deleted if a controller can create the next one."""
    async with sharing(cluster) as harness:
        owner = await harness.driver.create(
            CONFIG_MAP, Document({"metadata": {"name": "owner", "namespace": namespace}})
        )
        alone = await harness.create_pod(namespace, "alone", **HALF)
        await harness.create_pod(namespace, "p", **HALF)
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid, "controller": True}
        await harness.driver.patch(POD, "p", namespace, {"metadata": {"ownerReferences": [reference]}})
        owned = await harness.store.get(Pod, "p", namespace)
        await harness.create_node(node_name, simulated=False)
        async with webhook(harness):
            with pytest.raises(Invalid, match="older than the webhook"):
                await harness.binder.bind(alone, node_name, [half()])
            with pytest.raises(Unavailable, match="its controller creates it again"):
                await harness.binder.bind(owned, node_name, [half()])

        assert not await harness.is_deleted(alone)
        assert await harness.is_deleted(owned)


async def test_unknown_memory(cluster: Cluster, namespace: str, node_name: str) -> None:
    """If the memory of a GPU is unknown no limit can be set, and the message says how to label the node."""
    async with sharing(cluster) as harness:
        pod = await create_pending(harness, namespace)
        with pytest.raises(Unavailable, match=r"label the node nvidia\.com/gpu\.memory=MIB"):
            await harness.bind(pod, await harness.create_node(node_name, memory=0), half())


async def test_webhook_and_binder_agree(cluster: Cluster, namespace: str, node_name: str) -> None:
    """The ConfigMap that the binder writes has every key that the webhook made the pod refer to."""
    async with sharing(cluster) as harness, webhook(harness):
        pod = await harness.create_pod(namespace, "p", **HALF, **{labels.GPU_COMPUTE_MODE: "strict"})
        bound = await harness.bind(pod, await harness.create_node(node_name), half())
        config = await harness.config_map(bound)
        stored = (await harness.driver.get(POD, "p", namespace)).data["spec"]

    keys = {variable["valueFrom"]["configMapKeyRef"]["key"] for variable in stored["containers"][0]["env"]}
    mounts = [*stored["containers"][0]["volumeMounts"], *stored["initContainers"][0]["volumeMounts"]]
    keys |= {mount["subPath"] for mount in mounts if mount["name"] == "aliquot-gpu-config"}
    assert keys == set(config["data"])
