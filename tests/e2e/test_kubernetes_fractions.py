"""Parts of GPUs on a real API server; what a kubelet would do is done by hand."""

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
from support.kubernetes.gpu_sharing import NODE, Crashed, CrashingDriver, SharingHarness, half, sharing, until, webhook
from support.kubernetes.kinds import POD
from support.stores.running import running

pytestmark = pytest.mark.kube

HALF = {labels.GPU_FRACTION: "0.5"}


@pytest.fixture
def name() -> str:
    """Of a node that no other test has."""
    return f"node-{uuid.uuid4().hex[:8]}"


async def waiting(harness: SharingHarness, namespace: str, pod: str = "p", **marks: str) -> Pod:
    """A pod with a part and the name of its ConfigMap, as the webhook leaves it."""
    return await harness.create_pod(namespace, pod, **(marks or HALF), **{labels.GPU_CONFIG: f"aliquot-gpu-{pod}"})


async def test_whole_gpus_are_bound_at_once(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod with whole GPUs, or none, needs nothing but its binding."""
    async with sharing(cluster) as harness:
        pod = await harness.create_pod(namespace, "p")
        await harness.binder.bind(pod, await harness.create_node(name), [half(1, milli=1000)])

        bound = await harness.store.get(Pod, "p", namespace)
        assert bound.spec.node_name == name
        assert [share.index for share in shares_of(bound)] == [1]


async def test_bind(cluster: Cluster, namespace: str, name: str) -> None:
    """Before a pod with a part is bound its GPU is held, and its ConfigMap says which it is and how much of it."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        config, held = await harness.config_map(bound), await harness.reservation(name)

    assert bound.spec.node_name == name
    assert [share.uuid for share in shares_of(bound)] == [f"simulated-{name}-0"]
    assert "limit=17044602880 " in config["data"]["limits"]  # half of 32510 MiB
    assert f"tenant {bound.metadata.uid}" in config["data"]["limits"]
    assert config["data"]["NVIDIA_VISIBLE_DEVICES"] == f"simulated-{name}-0"
    assert config["immutable"]
    assert held.spec.node_name == name
    assert list(read_claims(held)) == [bound.metadata.uid]


async def test_config_goes_with_the_pod(cluster: Cluster, namespace: str, name: str) -> None:
    """When the pod is gone its ConfigMap is collected."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        await harness.remove(bound)

        async def collected() -> bool:
            try:
                await harness.config_map(bound)
            except NotFound:
                return True
            return False

        await until(collected)


async def test_one_reservation_for_all_parts(cluster: Cluster, namespace: str, name: str) -> None:
    """Parts of one GPU share its reservation, which goes when the last of them has gone."""
    async with sharing(cluster) as harness:
        await harness.create_node(name)
        pods = [await waiting(harness, namespace, f"p{i}", **{"gpu-fraction": "0.25"}) for i in range(4)]
        bound = await asyncio.gather(*(harness.bind(pod, name, half(milli=250)) for pod in pods))
        held = await harness.reservation(name)
        assert set(read_claims(held)) == {pod.metadata.uid for pod in pods}

        for pod in bound[:3]:
            await harness.remove(pod)
        await until(lambda: _has_claims(harness, name, {bound[3].metadata.uid}))
        assert not await harness.is_deleted(held)

        await harness.set_phase(bound[3], "Succeeded")
        await until(lambda: harness.is_deleted(held))


async def _has_claims(harness: SharingHarness, node: str, uids: set[str]) -> bool:
    return set(read_claims(await harness.reservation(node))) == uids


async def test_several_devices(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod with parts of two GPUs has two reservations, and both in its limits."""
    async with sharing(cluster) as harness:
        pod = await waiting(harness, namespace, **HALF, **{labels.GPU_DEVICES: "2"})
        bound = await harness.bind(pod, await harness.create_node(name), half(0), half(1))
        config = await harness.config_map(bound)

    assert config["data"]["NVIDIA_VISIBLE_DEVICES"] == f"simulated-{name}-0,simulated-{name}-1"
    assert config["data"]["limits"].count("\ngpu ") == 2


async def test_memory(cluster: Cluster, namespace: str, name: str) -> None:
    """An amount of memory is the limit as it was asked for."""
    async with sharing(cluster) as harness:
        pod = await waiting(harness, namespace, **{labels.GPU_MEMORY_MIB: "4096"})
        bound = await harness.bind(pod, await harness.create_node(name), half(milli=125, memory_mib=4096))
        config = await harness.config_map(bound)

    assert f"limit={4096 << 20} " in config["data"]["limits"]


async def test_node_refuses(cluster: Cluster, namespace: str, name: str) -> None:
    """A GPU that is not free after all is refused by its node: the pod is not bound, and the reservation goes."""
    async with sharing(cluster) as harness:
        pod = await waiting(harness, namespace)
        binding = asyncio.create_task(harness.binder.bind(pod, await harness.create_node(name), [half()]))
        held = await harness.reservation(name)
        await harness.set_phase(held, "Failed", reason="UnexpectedAdmissionError", message="no devices left")

        with pytest.raises((Unavailable, Conflict), match=r"not free: no devices left|Precondition failed"):
            await binding
        await until(lambda: harness.is_deleted(held))
        assert not (await harness.store.get(Pod, "p", namespace)).spec.node_name


async def test_slow_reservation(cluster: Cluster, namespace: str, name: str) -> None:
    """A bind does not wait for ever for its GPU, says why, and the next try goes on with what is there."""
    async with sharing(cluster, hold_seconds=0.3, idle_seconds=3600.0) as harness:
        pod = await waiting(harness, namespace)
        with pytest.raises(Unavailable, match=f"GPU 0 of node {name} is not reserved yet"):
            await harness.binder.bind(pod, await harness.create_node(name), [half()])
        held = await harness.reservation(name)
        await harness.set_phase(held)
        await harness.wait_for(lambda: harness.informers.of(Pod).get(*place(held)).status.phase == "Running")

        await harness.binder.bind(await harness.store.get(Pod, "p", namespace), name, [half()])

        assert (await harness.store.get(Pod, "p", namespace)).spec.node_name == name
        assert (await harness.reservation(name)).metadata.uid == held.metadata.uid


def place(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name, pod.metadata.namespace


async def test_others_do_not_wait(cluster: Cluster, namespace: str, name: str) -> None:
    """While one bind waits for its GPU, binds elsewhere go on."""
    async with sharing(cluster) as harness:
        await harness.create_node(name)
        slow = asyncio.create_task(harness.binder.bind(await waiting(harness, namespace), name, [half(0)]))
        await harness.reservation(name, 0)

        await harness.bind(await waiting(harness, namespace, "q"), name, half(1))
        assert not slow.done()
        await harness.set_phase(await harness.reservation(name, 0))
        await slow


async def test_changed_pod_is_not_bound(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod that changed since it was planned is not bound, and its claim is over."""
    async with sharing(cluster) as harness:
        pod = await waiting(harness, namespace)
        await harness.driver.patch(POD, "p", namespace, {"metadata": {"labels": {"new": "yes"}}})

        with pytest.raises(Conflict):
            await harness.bind(pod, await harness.create_node(name), half())
        held = await harness.reservation(name)
        await until(lambda: harness.is_deleted(held))


async def test_claim_of_a_waiting_pod_holds(cluster: Cluster, namespace: str, name: str) -> None:
    """Who was killed between claim and binding can go on: the GPU is still held, and nobody else had it."""
    async with sharing(cluster) as harness:
        pod = await waiting(harness, namespace)
        await harness.create_node(name)
        binding = asyncio.create_task(harness.binder.reservations.acquire(pod, name, 0))
        held = await harness.reservation(name)
        await harness.set_phase(held)
        await binding

    async with sharing(cluster) as harness:  # another process
        await harness.collector.reconcile((labels.RESERVATION_NAMESPACE, held.metadata.name))
        assert not await harness.is_deleted(held)
        await harness.binder.bind(pod, name, [half()])
        assert (await harness.store.get(Pod, "p", namespace)).spec.node_name == name


async def test_new_leader_ends_claims_of_waiting_pods(cluster: Cluster, namespace: str, name: str) -> None:
    """Who begins to schedule need not wait for claims that another made: only those of bound pods stay."""
    async with sharing(cluster, claim_seconds=3600.0) as harness:
        bound = await harness.bind(await waiting(harness, namespace, "bound"), await harness.create_node(name), half(0))
        pod = await waiting(harness, namespace)
        claimed = asyncio.create_task(harness.binder.reservations.acquire(pod, name, 1))
        abandoned = await harness.reservation(name, 1)
        await harness.set_phase(abandoned)
        await claimed

    async with sharing(cluster, claim_seconds=3600.0) as harness:  # another process
        await harness.wait_for(lambda: harness.informers.of(Pod).get("p", namespace))
        await harness.binder.abandon_unfinished()
        await until(lambda: harness.is_deleted(abandoned))
        assert list(read_claims(await harness.reservation(name))) == [bound.metadata.uid]
        with pytest.raises(Conflict):  # what the other may still have on its way
            await harness.driver.bind("p", namespace, name, {}, version=pod.metadata.version)
        again = await harness.store.get(Pod, "p", namespace)
        assert (await harness.bind(again, name, half(0))).spec.node_name == name


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_killed_between_writes(cluster: Cluster, namespace: str, name: str, writes: int) -> None:
    """Killed after any write of a bind, the next process finishes it: one reservation, one claim, the right limits."""
    async with sharing(cluster, driver_type=CrashingDriver) as harness:
        assert isinstance(harness.driver, CrashingDriver)
        pod = await waiting(harness, namespace)
        await harness.create_node(name)
        harness.driver.writes_left = writes
        binding = asyncio.create_task(harness.binder.bind(pod, name, [half()]))
        if writes > 1:
            await harness.set_phase(await harness.reservation(name))
        with pytest.raises(Crashed):
            await binding

    async with sharing(cluster) as harness:
        seen = await harness.store.get(Pod, "p", namespace)
        assert bool(seen.spec.node_name) is (writes == 4)
        if not seen.spec.node_name:
            seen = await harness.bind(pod, name, half())
        held = await harness.reservation(name)
        assert seen.spec.node_name == name
        assert list(read_claims(held)) == [seen.metadata.uid]
        assert [share.uuid for share in shares_of(held)] == [share.uuid for share in shares_of(seen)]
        assert f"tenant {seen.metadata.uid}" in (await harness.config_map(seen))["data"]["limits"]


async def test_old_claim_is_broken(cluster: Cluster, namespace: str, name: str) -> None:
    """A claim that nobody came back to is ended together with every binding that could still rely on it."""
    async with sharing(cluster, claim_seconds=0.2) as harness:
        pod = await waiting(harness, namespace)
        await harness.create_node(name)
        claimed = asyncio.create_task(harness.binder.reservations.acquire(pod, name, 0))
        held = await harness.reservation(name)
        await harness.set_phase(held)
        await claimed

        await until(lambda: harness.is_deleted(held))
        with pytest.raises(Conflict):
            await harness.driver.bind("p", namespace, name, {}, version=pod.metadata.version)


async def test_abandoned_before_it_ran(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation whose binder went away before it ran is let go once it runs: nobody waits for its image."""
    async with sharing(cluster, preparing_seconds=3600.0) as harness:
        pod = await waiting(harness, namespace)
        claimed = asyncio.create_task(harness.binder.reservations.acquire(pod, await harness.create_node(name), 0))
        held = await harness.reservation(name)
        claimed.cancel()
        await harness.driver.patch(POD, "p", namespace, {"metadata": {"labels": {"changed": "true"}}})
        await harness.set_phase(held)
        await until(lambda: harness.is_deleted(held))


async def test_failed_bind_gives_up_its_claim(cluster: Cluster, namespace: str, name: str) -> None:
    """A GPU that could not be held in time is not kept for the pod that wanted it."""
    async with sharing(cluster, hold_seconds=0.2, claim_seconds=3600.0) as harness:
        pod = await waiting(harness, namespace)
        with pytest.raises(Unavailable):
            await harness.binder.bind(pod, await harness.create_node(name), [half()])
        held = await harness.reservation(name)
        await harness.set_phase(held)
        await until(lambda: harness.is_deleted(held))


async def test_claim_beats_removal(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation that was seen without claims is not removed when one has come meanwhile."""
    async with sharing(cluster, idle_seconds=3600.0, preparing_seconds=3600.0) as harness:
        pod = await waiting(harness, namespace)
        binding = asyncio.create_task(harness.binder.bind(pod, await harness.create_node(name), [half()]))
        seen = await harness.reservation(name)
        await harness.set_phase(seen)
        await binding

        with pytest.raises(Conflict):
            await harness.binder.reservations.delete(seen)  # as it was before its claim was acted upon
        assert not await harness.is_deleted(seen)


def _leaves(pod: Pod | None) -> bool:
    return pod is None or pod.metadata.deleted is not None


async def test_leaving_reservation_cannot_be_claimed(cluster: Cluster, namespace: str, name: str) -> None:
    """A GPU on its way back is not given out; the next plan finds it free or held."""
    async with sharing(cluster) as harness:
        pod = await waiting(harness, namespace)
        first = asyncio.create_task(harness.binder.reservations.acquire(pod, await harness.create_node(name), 0))
        held = await harness.reservation(name)
        await harness.set_phase(held)
        await first
        await harness.driver.delete(POD, *place(held), grace_seconds=30)
        await harness.wait_for(lambda: _leaves(harness.informers.of(Pod).get(*place(held))))
        with pytest.raises(Unavailable, match=r"being given back"):
            await harness.binder.bind(pod, name, [half()])
        await harness.remove(held)
        await harness.wait_for(lambda: harness.informers.of(Pod).get(*place(held)) is None)

        again = await harness.store.get(Pod, "p", namespace)
        assert (await harness.bind(again, name, half())).spec.node_name == name


async def test_adopted_after_a_restart(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation that lost its last part while nobody looked is let go by the next process."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        held = await harness.reservation(name)
    async with sharing(cluster, idle_seconds=3600.0) as harness:
        await harness.remove(bound)
    async with sharing(cluster) as harness:
        await until(lambda: harness.is_deleted(held))


async def test_nodes_not_known_yet(cluster: Cluster, namespace: str, name: str) -> None:
    """A process that has not heard of the nodes yet takes none of them for gone."""
    async with sharing(cluster) as harness:
        await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        held = await harness.reservation(name)
        informers = Informers(harness.driver)
        early = ReservationCollector(harness.driver, informers, harness.binder.reservations, harness.settings)
        async with running(informers.of(Pod).run()):
            await informers.of(Pod).synced.wait()
            looking = asyncio.create_task(early.reconcile((held.metadata.namespace, held.metadata.name)))
            await asyncio.wait([looking], timeout=0.2)
            async with running(informers.of(Node).run()):
                await looking
            assert not await harness.is_deleted(held)


async def test_dead_claims_are_dropped(cluster: Cluster, namespace: str, name: str) -> None:
    """Claims of pods that never existed or are gone do not keep a GPU."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        held = await harness.reservation(name)
        claims = {**read_claims(held), "nobody": GpuClaim("gone", namespace, "1")}
        await harness.binder.reservations.annotate(held, labels.GPU_CLAIMS, claims_annotation(claims))

        await until(lambda: _has_claims(harness, name, {bound.metadata.uid}))


async def test_taken_away(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation that somebody removes under a running job is made anew, also by the next process."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        first = await harness.reservation(name)
        await harness.remove(first)
        await made_anew(harness, first)
        second = await harness.reservation(name)
        assert list(read_claims(second)) == [bound.metadata.uid]

    name_, space = place(second)
    await asyncio.to_thread(cluster.kubectl, "delete", "pod", "-n", space, name_, "--grace-period=0", "--force")
    async with sharing(cluster) as harness:
        third = await harness.reservation(name)
        await harness.set_phase(third)
        assert third.metadata.uid != second.metadata.uid
        assert not await harness.is_deleted(bound)


async def made_anew(harness: SharingHarness, first: Pod) -> None:
    heard = harness.informers.of(Pod)
    await harness.wait_for(lambda: (now := heard.get(*place(first))) and now.metadata.uid != first.metadata.uid)


async def test_another_gpu_after_that(cluster: Cluster, namespace: str, name: str) -> None:
    """Where the node then gives out another GPU, the job whose GPU may be anybody's is stopped."""
    async with sharing(cluster) as harness:
        bound = await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        first = await harness.reservation(name)
        share = replace(shares_of(bound)[0], uuid="GPU-another")
        change = {"metadata": {"annotations": {labels.DEVICES: shares_text([share])}}}
        await harness.driver.patch(POD, "p", namespace, change)
        heard = harness.informers.of(Pod)
        await harness.wait_for(lambda: "another" in heard.get("p", namespace).metadata.annotations[labels.DEVICES])
        await harness.remove(first)
        await made_anew(harness, first)
        await harness.set_phase(await harness.reservation(name))

        await until(lambda: harness.is_deleted(bound))


async def test_node_gone(cluster: Cluster, namespace: str, name: str) -> None:
    """With its node a reservation goes at once, although no kubelet answers."""
    async with sharing(cluster) as harness:
        await harness.bind(await waiting(harness, namespace), await harness.create_node(name), half())
        held = await harness.reservation(name)
        await harness.driver.delete(NODE, name)

        async def removed() -> bool:
            try:
                await harness.store.get(Pod, *place(held))
            except NotFound:
                return True
            return False

        await until(removed)


async def test_config_of_an_earlier_try(cluster: Cluster, namespace: str, name: str) -> None:
    """A ConfigMap that an earlier try left is made anew; one of somebody else is left alone."""
    async with sharing(cluster) as harness:
        await harness.create_node(name)
        pod = await waiting(harness, namespace)
        mine = {"metadata": {"name": "aliquot-gpu-p", "namespace": namespace}, "data": {"limits": "old"}}
        await harness.driver.create(CONFIG_MAP, Document(mine))
        with pytest.raises(Invalid, match="is not managed by Aliquot"):
            await harness.bind(pod, name, half())

        change = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "aliquot"}}}
        await harness.driver.patch(CONFIG_MAP, "aliquot-gpu-p", namespace, change)
        bound = await harness.bind(await harness.store.get(Pod, "p", namespace), name, half())
        assert "tenant" in (await harness.config_map(bound))["data"]["limits"]


async def test_no_webhook(cluster: Cluster, namespace: str, name: str) -> None:
    """Where nothing fences pods, those that need it are not bound."""
    async with sharing(cluster) as harness:
        pod = await harness.create_pod(namespace, "p", **HALF)
        with pytest.raises(Invalid, match="has no limit on its GPU fraction; the webhook is not installed"):
            await harness.binder.bind(pod, await harness.create_node(name, simulated=False), [half()])


async def test_pod_from_before_the_webhook(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod that is older than the webhook is left to whoever made it: a controller gets to make the next."""
    async with sharing(cluster) as harness:
        owner = await harness.driver.create(
            CONFIG_MAP, Document({"metadata": {"name": "owner", "namespace": namespace}})
        )
        alone = await harness.create_pod(namespace, "alone", **HALF)
        await harness.create_pod(namespace, "p", **HALF)
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid, "controller": True}
        await harness.driver.patch(POD, "p", namespace, {"metadata": {"ownerReferences": [reference]}})
        owned = await harness.store.get(Pod, "p", namespace)
        await harness.create_node(name, simulated=False)
        async with webhook(harness):
            with pytest.raises(Invalid, match="older than the webhook"):
                await harness.binder.bind(alone, name, [half()])
            with pytest.raises(Unavailable, match="its controller creates it again"):
                await harness.binder.bind(owned, name, [half()])

        assert not await harness.is_deleted(alone)
        assert await harness.is_deleted(owned)


async def test_unknown_memory(cluster: Cluster, namespace: str, name: str) -> None:
    """Where nobody says how much memory a GPU has no limit can be kept, and an administrator is told what to do."""
    async with sharing(cluster) as harness:
        pod = await waiting(harness, namespace)
        with pytest.raises(Unavailable, match=r"label the node nvidia\.com/gpu\.memory=MIB"):
            await harness.bind(pod, await harness.create_node(name, memory=0), half())


async def test_webhook_and_binder_agree(cluster: Cluster, namespace: str, name: str) -> None:
    """Every key that a pod refers to since the webhook is in the ConfigMap that the binder writes."""
    async with sharing(cluster) as harness, webhook(harness):
        pod = await harness.create_pod(namespace, "p", **HALF, **{labels.GPU_COMPUTE_MODE: "strict"})
        bound = await harness.bind(pod, await harness.create_node(name), half())
        config = await harness.config_map(bound)
        stored = (await harness.driver.get(POD, "p", namespace)).data["spec"]

    keys = {one["valueFrom"]["configMapKeyRef"]["key"] for one in stored["containers"][0]["env"]}
    mounts = [*stored["containers"][0]["volumeMounts"], *stored["initContainers"][0]["volumeMounts"]]
    keys |= {one["subPath"] for one in mounts if one["name"] == "aliquot-gpu-config"}
    assert keys == set(config["data"])
