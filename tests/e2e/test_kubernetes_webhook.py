"""The webhook, called by a real API server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aliquot import labels
from aliquot.api import KINDS, Namespace
from aliquot.backends.kubernetes.certificates import SECRET_NAME
from aliquot.backends.kubernetes.scheduler_name import SchedulerNameController
from aliquot.backends.kubernetes.unstructured_kinds import MUTATING_WEBHOOK, SECRET
from aliquot.backends.kubernetes.webhook import CONFIGURATION_NAME
from aliquot.errors import Invalid, Unavailable
from aliquot.store.driver import Document
from support.kubernetes.cluster import Cluster
from support.kubernetes.gpu_sharing import SharingHarness, annotated_pod, remove_webhook, sharing, webhook
from support.kubernetes.kinds import POD
from support.stores.running import running
from support.waiting import eventually

pytestmark = pytest.mark.kube

HALF = {"gpu-fraction": "0.5"}


async def stored(harness: SharingHarness, pod: Document) -> dict[str, Any]:
    """The pod as the API server stored it."""
    return (await harness.driver.get(POD, pod.name, pod.namespace)).data


async def test_pod_with_a_fraction(cluster: Cluster, namespace: str) -> None:
    """A pod that asks for a fraction is stored with its GPU injection."""
    async with sharing(cluster) as harness, webhook(harness):
        pod = await stored(harness, await harness.driver.create(POD, annotated_pod(namespace, "p", **HALF)))

    mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert {"/etc/ld.so.preload", "/run/gpushare/ledger", "/run/gpushare/limits"} <= mounts
    assert pod["spec"]["initContainers"][0]["name"] == "aliquot-gpu-files"
    assert labels.GPU_CONFIG in pod["metadata"]["annotations"]


async def test_pod_with_a_generated_name(cluster: Cluster, namespace: str) -> None:
    """Pods of a controller have no name at admission; each gets its own ConfigMap."""
    async with sharing(cluster) as harness, webhook(harness):
        wanted = annotated_pod(namespace, "p", **HALF).data
        wanted |= {"apiVersion": "v1", "kind": "Pod"}
        wanted["metadata"] = {"namespace": namespace, "generateName": "p-", "annotations": HALF}
        account = ("serviceaccount/default", "-n", namespace, "--timeout=60s")  # without it no pod is admitted
        await asyncio.to_thread(cluster.kubectl, "wait", "--for=create", *account)
        for _ in range(2):
            await asyncio.to_thread(cluster.kubectl, "create", "-f", "-", stdin=json.dumps(wanted))
        pods = await harness.driver.list(POD, namespace)

    assert len({pod.metadata["annotations"][labels.GPU_CONFIG] for pod in pods.items}) == 2


async def test_refused_in_one_line(cluster: Cluster, namespace: str) -> None:
    """An invalid request is refused with one line that says what to write."""
    async with sharing(cluster) as harness, webhook(harness):
        with pytest.raises(Invalid, match=r"metadata.annotations\['gpu-fraction'\]: must have at most three decimals"):
            await harness.driver.create(POD, annotated_pod(namespace, "p", **{"gpu-fraction": "0.33333"}))


async def test_pod_of_another_scheduler(cluster: Cluster, namespace: str) -> None:
    """A pod that another scheduler places is left alone, whatever its annotations."""
    async with sharing(cluster) as harness, webhook(harness):
        wanted = annotated_pod(namespace, "p", **HALF).data
        wanted["spec"]["schedulerName"] = "another"
        pod = await harness.driver.create(POD, Document(wanted))

    assert labels.GPU_CONFIG not in pod.metadata["annotations"]


async def test_down(cluster: Cluster, namespace: str) -> None:
    """While the webhook is down, pods that need it are refused, and all others are admitted."""
    async with sharing(cluster) as harness:
        async with webhook(harness):
            configuration = (await harness.driver.get(MUTATING_WEBHOOK, CONFIGURATION_NAME)).data
        kept = {key: configuration["metadata"][key] for key in ("name", "labels")}
        await harness.driver.create(
            MUTATING_WEBHOOK, Document({"metadata": kept, "webhooks": configuration["webhooks"]})
        )
        try:
            await wait_until_refused(harness, annotated_pod(namespace, "needs", **HALF))
            await harness.driver.create(POD, annotated_pod(namespace, "plain"))
            async with webhook(harness):
                await harness.driver.create(POD, annotated_pod(namespace, "needs", **HALF))
        finally:
            await remove_webhook(harness)


async def wait_until_refused(harness: SharingHarness, wanted: Document) -> None:
    """The API server learns of the webhook a moment later; until then it admits the pod."""
    async with asyncio.timeout(60):
        while True:
            try:
                await harness.driver.create(POD, wanted)
            except Unavailable as exc:
                if "failed calling webhook" not in str(exc):
                    raise
                return
            await harness.driver.delete(POD, wanted.name, wanted.namespace, grace_seconds=0)


async def test_restarted(cluster: Cluster, namespace: str) -> None:
    """After a restart the webhook serving the same certificate at another address."""
    async with sharing(cluster) as harness:
        async with webhook(harness):
            first = (await harness.driver.get(SECRET, SECRET_NAME, labels.SYSTEM_NAMESPACE)).data["data"]
        async with webhook(harness):
            await harness.driver.create(POD, annotated_pod(namespace, "p", **HALF))
            assert (await harness.driver.get(SECRET, SECRET_NAME, labels.SYSTEM_NAMESPACE)).data["data"] == first


async def test_enforced_namespace(cluster: Cluster, namespace: str) -> None:
    """In a namespace with an enforced scheduler name every pod gets that name, also one with a GPU fraction."""
    async with sharing(cluster) as harness, webhook(harness):
        scheduler_name = SchedulerNameController(harness.store, harness.informers)
        async with running(scheduler_name.controller.run()):
            await asyncio.to_thread(
                cluster.kubectl, "annotate", "namespace", namespace, "runai/enforce-scheduler-name=true"
            )
            namespaces = harness.informers.of(Namespace)
            await eventually(
                lambda: (seen := namespaces.get(namespace)) and labels.SCHEDULER_ENFORCED in seen.metadata.labels
            )
            wanted = annotated_pod(namespace, "p", **HALF).data
            del wanted["spec"]["schedulerName"]
            async with asyncio.timeout(60):
                while True:
                    pod = await harness.driver.create(POD, Document(wanted))
                    if pod.data["spec"]["schedulerName"] == "aliquot":
                        break
                    await harness.driver.delete(
                        POD, "p", namespace, grace_seconds=0
                    )  # the API server has not seen the label yet
            assert labels.GPU_CONFIG in pod.metadata["annotations"]

            await asyncio.to_thread(
                cluster.kubectl, "annotate", "namespace", namespace, "runai/enforce-scheduler-name-"
            )

            async def is_label_removed() -> bool:
                return labels.SCHEDULER_ENFORCED not in await labels_of(harness, namespace)

            await eventually(is_label_removed)


async def labels_of(harness: SharingHarness, namespace: str) -> dict[str, str]:
    return dict((await harness.driver.get(KINDS.of(Namespace), namespace)).metadata["labels"])
