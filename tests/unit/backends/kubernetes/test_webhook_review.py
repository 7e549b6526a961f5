"""What the API server is answered when it asks about a pod."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from aliquot import labels
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.backends.kubernetes.webhook import WebhookAddress, configuration, inject_gpu, json_patch, review_response
from aliquot.errors import Invalid

SETTINGS = GpuSharingSettings(image="files")


def pod(name: str = "p", **marks: str) -> dict[str, Any]:
    metadata = {"name": name} if name else {"generateName": "p-"}
    return {"metadata": {**metadata, "annotations": marks}, "spec": {"containers": [{"name": "main"}]}}


def review(asked: dict[str, Any]) -> dict[str, Any]:
    request = {"uid": "u1", "namespace": "a", "object": asked}
    said = review_response(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request},
        lambda pod, namespace: json_patch(pod, inject_gpu(pod, namespace, SETTINGS)),
    )
    assert said["response"]["uid"] == "u1"
    return said["response"]


def test_patch() -> None:
    """A pod that asks for a part is taken, with a patch that gives it its fence and the name of its ConfigMap."""
    said = review(pod(**{"gpu-fraction": "0.5"}))

    steps = {one["path"]: one["value"] for one in json.loads(base64.b64decode(said["patch"]))}
    assert said["allowed"]
    assert set(steps) == {"/metadata/annotations", "/spec/containers", "/spec/initContainers", "/spec/volumes"}
    assert steps["/metadata/annotations"]["gpu-fraction"] == "0.5"
    config = steps["/metadata/annotations"][labels.GPU_CONFIG]
    assert {"name": "aliquot-gpu-config", "configMap": {"name": config, "defaultMode": 0o444}} in steps["/spec/volumes"]


def test_others_are_left_alone() -> None:
    """A pod that asks for nothing of the kind is taken as it is."""
    assert review(pod()) == {"uid": "u1", "allowed": True}


def test_refused() -> None:
    """A pod that asks for what cannot be given is refused in one sentence."""
    said = review(pod(**{"gpu-fraction": "1.5"}))

    assert not said["allowed"]
    assert said["status"]["code"] == 400
    assert said["status"]["message"].startswith("pod: metadata.annotations['gpu-fraction']: must be more than 0")


def test_pod_without_a_name_keeps_its_config() -> None:
    """A pod whose name is still to be made gets a ConfigMap of its own, and the same one when we are asked again."""
    once = inject_gpu(pod("", **{"gpu-fraction": "0.5"}), "a", SETTINGS)
    other = inject_gpu(pod("", **{"gpu-fraction": "0.5"}), "a", SETTINGS)

    assert inject_gpu(once, "a", SETTINGS) == once
    assert once["metadata"]["annotations"][labels.GPU_CONFIG] != other["metadata"]["annotations"][labels.GPU_CONFIG]


def test_copied_pod_gets_its_own_config() -> None:
    """A copy of a pod under another name does not refer to the ConfigMap of the first."""
    first = inject_gpu(pod("p", **{"gpu-fraction": "0.5"}), "a", SETTINGS)
    copied = {**first, "metadata": {**first["metadata"], "name": "q"}}

    second = inject_gpu(copied, "a", SETTINGS)

    config = second["metadata"]["annotations"][labels.GPU_CONFIG]
    assert config != first["metadata"]["annotations"][labels.GPU_CONFIG]
    names = {one["valueFrom"]["configMapKeyRef"]["name"] for one in second["spec"]["containers"][0]["env"]}
    assert names == {config}


def test_configuration_by_service() -> None:
    """Inside a cluster the API server is told a service; the certificate is good for its name."""
    address = WebhookAddress(service="hook", namespace="ours", port=8443)

    client = configuration(address, b"trust")["webhooks"][1]["clientConfig"]
    assert client["service"] == {"name": "hook", "namespace": "ours", "path": "/pods", "port": 8443}
    assert base64.b64decode(client["caBundle"]) == b"trust"
    assert "hook.ours.svc" in address.names


def test_configuration_by_address() -> None:
    """Outside a cluster the API server is told an address."""
    address = WebhookAddress("https://[::1]:9443/")
    assert configuration(address, b"")["webhooks"][1]["clientConfig"]["url"] == "https://[::1]:9443/pods"
    assert address.names == ("::1",)


@pytest.mark.parametrize("url", ["http://a:1", "https://", "a:1", "https://a/b", "https://a?b"])
def test_bad_address(url: str) -> None:
    """An address that the API server could not call is refused at once."""
    with pytest.raises(Invalid, match="must look like https://host:port"):
        WebhookAddress(url)
