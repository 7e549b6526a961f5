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


async def waiting(world: SharingHarness, namespace: str, pod: str = "p", **marks: str) -> Pod:
    """A pod with a part and the name of its ConfigMap, as the webhook leaves it."""
    return await world.pod(namespace, pod, **(marks or HALF), **{labels.GPU_CONFIG: f"aliquot-gpu-{pod}"})


async def test_whole_gpus_are_bound_at_once(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod with whole GPUs, or none, needs nothing but its binding."""
    async with sharing(cluster) as world:
        pod = await world.pod(namespace, "p")
        await world.binder.bind(pod, await world.node(name), [half(1, milli=1000)])

        bound = await world.store.get(Pod, "p", namespace)
        assert bound.spec.node_name == name
        assert [share.index for share in shares_of(bound)] == [1]


async def test_bind(cluster: Cluster, namespace: str, name: str) -> None:
    """Before a pod with a part is bound its GPU is held, and its ConfigMap says which it is and how much of it."""
    async with sharing(cluster) as world:
        bound = await world.bound(await waiting(world, namespace), await world.node(name), half())
        config, held = await world.config(bound), await world.reservation(name)

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
    async with sharing(cluster) as world:
        bound = await world.bound(await waiting(world, namespace), await world.node(name), half())
        await world.gone(bound)

        async def collected() -> bool:
            try:
                await world.config(bound)
            except NotFound:
                return True
            return False

        await until(collected)


async def test_one_reservation_for_all_parts(cluster: Cluster, namespace: str, name: str) -> None:
    """Parts of one GPU share its reservation, which goes when the last of them has gone."""
    async with sharing(cluster) as world:
        await world.node(name)
        pods = [await waiting(world, namespace, f"p{i}", **{"gpu-fraction": "0.25"}) for i in range(4)]
        bound = await asyncio.gather(*(world.bound(pod, name, half(milli=250)) for pod in pods))
        held = await world.reservation(name)
        assert set(read_claims(held)) == {pod.metadata.uid for pod in pods}

        for pod in bound[:3]:
            await world.gone(pod)
        await until(lambda: _has_claims(world, name, {bound[3].metadata.uid}))
        assert not await world.is_gone(held)

        await world.runs(bound[3], "Succeeded")
        await until(lambda: world.is_gone(held))


async def _has_claims(world: SharingHarness, node: str, uids: set[str]) -> bool:
    return set(read_claims(await world.reservation(node))) == uids


async def test_several_devices(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod with parts of two GPUs has two reservations, and both in its limits."""
    async with sharing(cluster) as world:
        pod = await waiting(world, namespace, **HALF, **{labels.GPU_DEVICES: "2"})
        bound = await world.bound(pod, await world.node(name), half(0), half(1))
        config = await world.config(bound)

    assert config["data"]["NVIDIA_VISIBLE_DEVICES"] == f"simulated-{name}-0,simulated-{name}-1"
    assert config["data"]["limits"].count("\ngpu ") == 2


async def test_memory(cluster: Cluster, namespace: str, name: str) -> None:
    """An amount of memory is the limit as it was asked for."""
    async with sharing(cluster) as world:
        pod = await waiting(world, namespace, **{labels.GPU_MEMORY_MIB: "4096"})
        bound = await world.bound(pod, await world.node(name), half(milli=125, memory_mib=4096))
        config = await world.config(bound)

    assert f"limit={4096 << 20} " in config["data"]["limits"]


async def test_node_refuses(cluster: Cluster, namespace: str, name: str) -> None:
    """A GPU that is not free after all is refused by its node: the pod is not bound, and the reservation goes."""
    async with sharing(cluster) as world:
        pod = await waiting(world, namespace)
        binding = asyncio.create_task(world.binder.bind(pod, await world.node(name), [half()]))
        held = await world.reservation(name)
        await world.runs(held, "Failed", reason="UnexpectedAdmissionError", message="no devices left")

        with pytest.raises((Unavailable, Conflict), match=r"not free: no devices left|Precondition failed"):
            await binding
        await until(lambda: world.is_gone(held))
        assert not (await world.store.get(Pod, "p", namespace)).spec.node_name


async def test_slow_reservation(cluster: Cluster, namespace: str, name: str) -> None:
    """A bind does not wait for ever for its GPU, says why, and the next try goes on with what is there."""
    async with sharing(cluster, hold_seconds=0.3, idle_seconds=3600.0) as world:
        pod = await waiting(world, namespace)
        with pytest.raises(Unavailable, match=f"GPU 0 of node {name} is not reserved yet"):
            await world.binder.bind(pod, await world.node(name), [half()])
        held = await world.reservation(name)
        await world.runs(held)
        await world.heard(lambda: world.informers.of(Pod).get(*place(held)).status.phase == "Running")

        await world.binder.bind(await world.store.get(Pod, "p", namespace), name, [half()])

        assert (await world.store.get(Pod, "p", namespace)).spec.node_name == name
        assert (await world.reservation(name)).metadata.uid == held.metadata.uid


def place(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name, pod.metadata.namespace


async def test_others_do_not_wait(cluster: Cluster, namespace: str, name: str) -> None:
    """While one bind waits for its GPU, binds elsewhere go on."""
    async with sharing(cluster) as world:
        await world.node(name)
        slow = asyncio.create_task(world.binder.bind(await waiting(world, namespace), name, [half(0)]))
        await world.reservation(name, 0)

        await world.bound(await waiting(world, namespace, "q"), name, half(1))
        assert not slow.done()
        await world.runs(await world.reservation(name, 0))
        await slow


async def test_changed_pod_is_not_bound(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod that changed since it was planned is not bound, and its claim is over."""
    async with sharing(cluster) as world:
        pod = await waiting(world, namespace)
        await world.driver.patch(POD, "p", namespace, {"metadata": {"labels": {"new": "yes"}}})

        with pytest.raises(Conflict):
            await world.bound(pod, await world.node(name), half())
        held = await world.reservation(name)
        await until(lambda: world.is_gone(held))


async def test_claim_of_a_waiting_pod_holds(cluster: Cluster, namespace: str, name: str) -> None:
    """Who was killed between claim and binding can go on: the GPU is still held, and nobody else had it."""
    async with sharing(cluster) as world:
        pod = await waiting(world, namespace)
        await world.node(name)
        binding = asyncio.create_task(world.binder.reservations.acquire(pod, name, 0))
        held = await world.reservation(name)
        await world.runs(held)
        await binding

    async with sharing(cluster) as world:  # another process
        await world.collector.reconcile((labels.RESERVATION_NAMESPACE, held.metadata.name))
        assert not await world.is_gone(held)
        await world.binder.bind(pod, name, [half()])
        assert (await world.store.get(Pod, "p", namespace)).spec.node_name == name


async def test_new_leader_ends_claims_of_waiting_pods(cluster: Cluster, namespace: str, name: str) -> None:
    """Who begins to schedule need not wait for claims that another made: only those of bound pods stay."""
    async with sharing(cluster, claim_seconds=3600.0) as world:
        bound = await world.bound(await waiting(world, namespace, "bound"), await world.node(name), half(0))
        pod = await waiting(world, namespace)
        claimed = asyncio.create_task(world.binder.reservations.acquire(pod, name, 1))
        abandoned = await world.reservation(name, 1)
        await world.runs(abandoned)
        await claimed

    async with sharing(cluster, claim_seconds=3600.0) as world:  # another process
        await world.heard(lambda: world.informers.of(Pod).get("p", namespace))
        await world.binder.abandon_unfinished()
        await until(lambda: world.is_gone(abandoned))
        assert list(read_claims(await world.reservation(name))) == [bound.metadata.uid]
        with pytest.raises(Conflict):  # what the other may still have on its way
            await world.driver.bind("p", namespace, name, {}, version=pod.metadata.version)
        again = await world.store.get(Pod, "p", namespace)
        assert (await world.bound(again, name, half(0))).spec.node_name == name


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_killed_between_writes(cluster: Cluster, namespace: str, name: str, writes: int) -> None:
    """Killed after any write of a bind, the next process finishes it: one reservation, one claim, the right limits."""
    async with sharing(cluster, body_type=CrashingDriver) as world:
        assert isinstance(world.driver, CrashingDriver)
        pod = await waiting(world, namespace)
        await world.node(name)
        world.driver.left = writes
        binding = asyncio.create_task(world.binder.bind(pod, name, [half()]))
        if writes > 1:
            await world.runs(await world.reservation(name))
        with pytest.raises(Crashed):
            await binding

    async with sharing(cluster) as world:
        seen = await world.store.get(Pod, "p", namespace)
        assert bool(seen.spec.node_name) is (writes == 4)
        if not seen.spec.node_name:
            seen = await world.bound(pod, name, half())
        held = await world.reservation(name)
        assert seen.spec.node_name == name
        assert list(read_claims(held)) == [seen.metadata.uid]
        assert [share.uuid for share in shares_of(held)] == [share.uuid for share in shares_of(seen)]
        assert f"tenant {seen.metadata.uid}" in (await world.config(seen))["data"]["limits"]


async def test_old_claim_is_broken(cluster: Cluster, namespace: str, name: str) -> None:
    """A claim that nobody came back to is ended together with every binding that could still rely on it."""
    async with sharing(cluster, claim_seconds=0.2) as world:
        pod = await waiting(world, namespace)
        await world.node(name)
        claimed = asyncio.create_task(world.binder.reservations.acquire(pod, name, 0))
        held = await world.reservation(name)
        await world.runs(held)
        await claimed

        await until(lambda: world.is_gone(held))
        with pytest.raises(Conflict):
            await world.driver.bind("p", namespace, name, {}, version=pod.metadata.version)


async def test_abandoned_before_it_ran(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation whose binder went away before it ran is let go once it runs: nobody waits for its image."""
    async with sharing(cluster, preparing_seconds=3600.0) as world:
        pod = await waiting(world, namespace)
        claimed = asyncio.create_task(world.binder.reservations.acquire(pod, await world.node(name), 0))
        held = await world.reservation(name)
        claimed.cancel()
        await world.driver.patch(POD, "p", namespace, {"metadata": {"labels": {"changed": "true"}}})
        await world.runs(held)
        await until(lambda: world.is_gone(held))


async def test_failed_bind_gives_up_its_claim(cluster: Cluster, namespace: str, name: str) -> None:
    """A GPU that could not be held in time is not kept for the pod that wanted it."""
    async with sharing(cluster, hold_seconds=0.2, claim_seconds=3600.0) as world:
        pod = await waiting(world, namespace)
        with pytest.raises(Unavailable):
            await world.binder.bind(pod, await world.node(name), [half()])
        held = await world.reservation(name)
        await world.runs(held)
        await until(lambda: world.is_gone(held))


async def test_claim_beats_removal(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation that was seen without claims is not removed when one has come meanwhile."""
    async with sharing(cluster, idle_seconds=3600.0, preparing_seconds=3600.0) as world:
        pod = await waiting(world, namespace)
        binding = asyncio.create_task(world.binder.bind(pod, await world.node(name), [half()]))
        seen = await world.reservation(name)
        await world.runs(seen)
        await binding

        with pytest.raises(Conflict):
            await world.binder.reservations.delete(seen)  # as it was before its claim was acted upon
        assert not await world.is_gone(seen)


def _leaves(pod: Pod | None) -> bool:
    return pod is None or pod.metadata.deleted is not None


async def test_leaving_reservation_cannot_be_claimed(cluster: Cluster, namespace: str, name: str) -> None:
    """A GPU on its way back is not given out; the next plan finds it free or held."""
    async with sharing(cluster) as world:
        pod = await waiting(world, namespace)
        first = asyncio.create_task(world.binder.reservations.acquire(pod, await world.node(name), 0))
        held = await world.reservation(name)
        await world.runs(held)
        await first
        await world.driver.delete(POD, *place(held), grace_seconds=30)
        await world.heard(lambda: _leaves(world.informers.of(Pod).get(*place(held))))
        with pytest.raises(Unavailable, match=r"being given back"):
            await world.binder.bind(pod, name, [half()])
        await world.gone(held)
        await world.heard(lambda: world.informers.of(Pod).get(*place(held)) is None)

        again = await world.store.get(Pod, "p", namespace)
        assert (await world.bound(again, name, half())).spec.node_name == name


async def test_adopted_after_a_restart(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation that lost its last part while nobody looked is let go by the next process."""
    async with sharing(cluster) as world:
        bound = await world.bound(await waiting(world, namespace), await world.node(name), half())
        held = await world.reservation(name)
    async with sharing(cluster, idle_seconds=3600.0) as world:
        await world.gone(bound)
    async with sharing(cluster) as world:
        await until(lambda: world.is_gone(held))


async def test_nodes_not_known_yet(cluster: Cluster, namespace: str, name: str) -> None:
    """A process that has not heard of the nodes yet takes none of them for gone."""
    async with sharing(cluster) as world:
        await world.bound(await waiting(world, namespace), await world.node(name), half())
        held = await world.reservation(name)
        informers = Informers(world.driver)
        early = ReservationCollector(world.driver, informers, world.binder.reservations, world.settings)
        async with running(informers.of(Pod).run()):
            await informers.of(Pod).synced.wait()
            looking = asyncio.create_task(early.reconcile((held.metadata.namespace, held.metadata.name)))
            await asyncio.wait([looking], timeout=0.2)
            async with running(informers.of(Node).run()):
                await looking
            assert not await world.is_gone(held)


async def test_dead_claims_are_dropped(cluster: Cluster, namespace: str, name: str) -> None:
    """Claims of pods that never existed or are gone do not keep a GPU."""
    async with sharing(cluster) as world:
        bound = await world.bound(await waiting(world, namespace), await world.node(name), half())
        held = await world.reservation(name)
        claims = {**read_claims(held), "nobody": GpuClaim("gone", namespace, "1")}
        await world.binder.reservations.annotate(held, labels.GPU_CLAIMS, claims_annotation(claims))

        await until(lambda: _has_claims(world, name, {bound.metadata.uid}))


async def test_taken_away(cluster: Cluster, namespace: str, name: str) -> None:
    """A reservation that somebody removes under a running job is made anew, also by the next process."""
    async with sharing(cluster) as world:
        bound = await world.bound(await waiting(world, namespace), await world.node(name), half())
        first = await world.reservation(name)
        await world.gone(first)
        await made_anew(world, first)
        second = await world.reservation(name)
        assert list(read_claims(second)) == [bound.metadata.uid]

    name_, space = place(second)
    await asyncio.to_thread(cluster.kubectl, "delete", "pod", "-n", space, name_, "--grace-period=0", "--force")
    async with sharing(cluster) as world:
        third = await world.reservation(name)
        await world.runs(third)
        assert third.metadata.uid != second.metadata.uid
        assert not await world.is_gone(bound)


async def made_anew(world: SharingHarness, first: Pod) -> None:
    heard = world.informers.of(Pod)
    await world.heard(lambda: (now := heard.get(*place(first))) and now.metadata.uid != first.metadata.uid)


async def test_another_gpu_after_that(cluster: Cluster, namespace: str, name: str) -> None:
    """Where the node then gives out another GPU, the job whose GPU may be anybody's is stopped."""
    async with sharing(cluster) as world:
        bound = await world.bound(await waiting(world, namespace), await world.node(name), half())
        first = await world.reservation(name)
        share = replace(shares_of(bound)[0], uuid="GPU-another")
        change = {"metadata": {"annotations": {labels.DEVICES: shares_text([share])}}}
        await world.driver.patch(POD, "p", namespace, change)
        heard = world.informers.of(Pod)
        await world.heard(lambda: "another" in heard.get("p", namespace).metadata.annotations[labels.DEVICES])
        await world.gone(first)
        await made_anew(world, first)
        await world.runs(await world.reservation(name))

        await until(lambda: world.is_gone(bound))


async def test_node_gone(cluster: Cluster, namespace: str, name: str) -> None:
    """With its node a reservation goes at once, although no kubelet answers."""
    async with sharing(cluster) as world:
        await world.bound(await waiting(world, namespace), await world.node(name), half())
        held = await world.reservation(name)
        await world.driver.delete(NODE, name)

        async def removed() -> bool:
            try:
                await world.store.get(Pod, *place(held))
            except NotFound:
                return True
            return False

        await until(removed)


async def test_config_of_an_earlier_try(cluster: Cluster, namespace: str, name: str) -> None:
    """A ConfigMap that an earlier try left is made anew; one of somebody else is left alone."""
    async with sharing(cluster) as world:
        await world.node(name)
        pod = await waiting(world, namespace)
        mine = {"metadata": {"name": "aliquot-gpu-p", "namespace": namespace}, "data": {"limits": "old"}}
        await world.driver.create(CONFIG_MAP, Document(mine))
        with pytest.raises(Invalid, match="is not managed by Aliquot"):
            await world.bound(pod, name, half())

        change = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "aliquot"}}}
        await world.driver.patch(CONFIG_MAP, "aliquot-gpu-p", namespace, change)
        bound = await world.bound(await world.store.get(Pod, "p", namespace), name, half())
        assert "tenant" in (await world.config(bound))["data"]["limits"]


async def test_no_webhook(cluster: Cluster, namespace: str, name: str) -> None:
    """Where nothing fences pods, those that need it are not bound."""
    async with sharing(cluster) as world:
        pod = await world.pod(namespace, "p", **HALF)
        with pytest.raises(Invalid, match="has no limit on its GPU fraction; the webhook is not installed"):
            await world.binder.bind(pod, await world.node(name, simulated=False), [half()])


async def test_pod_from_before_the_webhook(cluster: Cluster, namespace: str, name: str) -> None:
    """A pod that is older than the webhook is left to whoever made it: a controller gets to make the next."""
    async with sharing(cluster) as world:
        owner = await world.driver.create(CONFIG_MAP, Document({"metadata": {"name": "owner", "namespace": namespace}}))
        alone = await world.pod(namespace, "alone", **HALF)
        await world.pod(namespace, "p", **HALF)
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid, "controller": True}
        await world.driver.patch(POD, "p", namespace, {"metadata": {"ownerReferences": [reference]}})
        owned = await world.store.get(Pod, "p", namespace)
        await world.node(name, simulated=False)
        async with webhook(world):
            with pytest.raises(Invalid, match="older than the webhook"):
                await world.binder.bind(alone, name, [half()])
            with pytest.raises(Unavailable, match="its controller creates it again"):
                await world.binder.bind(owned, name, [half()])

        assert not await world.is_gone(alone)
        assert await world.is_gone(owned)


async def test_unknown_memory(cluster: Cluster, namespace: str, name: str) -> None:
    """Where nobody says how much memory a GPU has no limit can be kept, and an administrator is told what to do."""
    async with sharing(cluster) as world:
        pod = await waiting(world, namespace)
        with pytest.raises(Unavailable, match=r"label the node nvidia\.com/gpu\.memory=MIB"):
            await world.bound(pod, await world.node(name, memory=0), half())


async def test_webhook_and_binder_agree(cluster: Cluster, namespace: str, name: str) -> None:
    """Every key that a pod refers to since the webhook is in the ConfigMap that the binder writes."""
    async with sharing(cluster) as world, webhook(world):
        pod = await world.pod(namespace, "p", **HALF, **{labels.GPU_COMPUTE_MODE: "strict"})
        bound = await world.bound(pod, await world.node(name), half())
        config = await world.config(bound)
        stored = (await world.driver.get(POD, "p", namespace)).data["spec"]

    keys = {one["valueFrom"]["configMapKeyRef"]["key"] for one in stored["containers"][0]["env"]}
    mounts = [*stored["containers"][0]["volumeMounts"], *stored["initContainers"][0]["volumeMounts"]]
    keys |= {one["subPath"] for one in mounts if one["name"] == "aliquot-gpu-config"}
    assert keys == set(config["data"])
