"""The webhook's answers to the API server's AdmissionReviews."""

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


def pod_in_review(name: str = "p", **annotations: str) -> dict[str, Any]:
    metadata = {"name": name} if name else {"generateName": "p-"}
    return {"metadata": {**metadata, "annotations": annotations}, "spec": {"containers": [{"name": "main"}]}}


def review(pod: dict[str, Any]) -> dict[str, Any]:
    request = {"uid": "u1", "namespace": "a", "object": pod}
    result = review_response(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request},
        lambda pod, namespace: json_patch(pod, inject_gpu(pod, namespace, SETTINGS)),
    )
    assert result["response"]["uid"] == "u1"
    return dict(result["response"])


def test_patch() -> None:
    """A pod that asks for a fraction is admitted, with a patch that adds the injection and its ConfigMap's name."""
    response = review(pod_in_review(**{"gpu-fraction": "0.5"}))

    patch = {step["path"]: step["value"] for step in json.loads(base64.b64decode(response["patch"]))}
    assert response["allowed"]
    assert set(patch) == {"/metadata/annotations", "/spec/containers", "/spec/initContainers", "/spec/volumes"}
    assert patch["/metadata/annotations"]["gpu-fraction"] == "0.5"
    config = patch["/metadata/annotations"][labels.GPU_CONFIG]
    assert {"name": "aliquot-gpu-config", "configMap": {"name": config, "defaultMode": 0o444}} in patch["/spec/volumes"]


def test_other_pods_are_left_alone() -> None:
    """A pod that does not ask for a fraction is admitted unchanged."""
    assert review(pod_in_review()) == {"uid": "u1", "allowed": True}


def test_refused() -> None:
    """A pod with an invalid request is refused with a message."""
    response = review(pod_in_review(**{"gpu-fraction": "1.5"}))

    assert not response["allowed"]
    assert response["status"]["code"] == 400
    assert response["status"]["message"].startswith("pod: metadata.annotations['gpu-fraction']: must be more than 0")


def test_pod_without_a_name_keeps_its_config_map() -> None:
    """A pod without a name yet gets its own ConfigMap, and the same one when the webhook is reinvoked."""
    once = inject_gpu(pod_in_review("", **{"gpu-fraction": "0.5"}), "a", SETTINGS)
    other = inject_gpu(pod_in_review("", **{"gpu-fraction": "0.5"}), "a", SETTINGS)

    assert inject_gpu(once, "a", SETTINGS) == once
    assert once["metadata"]["annotations"][labels.GPU_CONFIG] != other["metadata"]["annotations"][labels.GPU_CONFIG]


def test_copied_pod_gets_its_own_config_map() -> None:
    """A copy of a pod under another name does not refer to the ConfigMap of the first."""
    first = inject_gpu(pod_in_review("p", **{"gpu-fraction": "0.5"}), "a", SETTINGS)
    copied = {**first, "metadata": {**first["metadata"], "name": "q"}}

    second = inject_gpu(copied, "a", SETTINGS)

    config = second["metadata"]["annotations"][labels.GPU_CONFIG]
    assert config != first["metadata"]["annotations"][labels.GPU_CONFIG]
    names = {variable["valueFrom"]["configMapKeyRef"]["name"] for variable in second["spec"]["containers"][0]["env"]}
    assert names == {config}


def test_configuration_by_service() -> None:
    """Inside a cluster the configuration names a Service; the certificate is valid for its name."""
    address = WebhookAddress(service="hook", namespace="ours", port=8443)

    client = configuration(address, b"trust")["webhooks"][1]["clientConfig"]
    assert client["service"] == {"name": "hook", "namespace": "ours", "path": "/pods", "port": 8443}
    assert base64.b64decode(client["caBundle"]) == b"trust"
    assert "hook.ours.svc" in address.names


def test_configuration_by_address() -> None:
    """Outside a cluster the configuration has a URL."""
    address = WebhookAddress("https://[::1]:9443/")
    assert configuration(address, b"")["webhooks"][1]["clientConfig"]["url"] == "https://[::1]:9443/pods"
    assert address.names == ("::1",)


@pytest.mark.parametrize("url", ["http://a:1", "https://", "a:1", "https://a/b", "https://a?b"])
def test_bad_address(url: str) -> None:
    """A URL that the API server could not call is refused at once."""
    with pytest.raises(Invalid, match="must look like https://host:port"):
        WebhookAddress(url)
