"""The GPU injection that is written into a pod and its ConfigMap."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.backends.kubernetes.fraction_request import FractionRequest
from aliquot.backends.kubernetes.gpu_injection import (
    INIT_CONTAINER,
    config_map_data,
    config_map_name,
    inject,
    is_config_map_name,
)
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.errors import Invalid
from aliquot.gpu.fractions import ComputeMode, GpuAllocation, SharingOptions
from aliquot.gpu.injection import GATE_BYTES
from aliquot.gpu.ledger import LEDGER_BYTES

CONFIG = "aliquot-gpu-0123456789abcdef"
SETTINGS = GpuSharingSettings(image="files", library_folder="/lib/a", gate_folder="/run/g")
HALF = FractionRequest(milli=500)
STRICT = FractionRequest(milli=500, options=SharingOptions(mode=ComputeMode.STRICT))


def plain_pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "i"}], **spec}}


def injected_spec(
    request: FractionRequest = HALF, settings: GpuSharingSettings = SETTINGS, **spec: Any
) -> dict[str, Any]:
    return dict(inject(plain_pod(**spec), request, CONFIG, settings)["spec"])


def volumes_by_path(container: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def test_files_and_mounts() -> None:
    """A container gets library, preload, limits and ledger, each as one file; only the ledger is writable."""
    container = injected_spec()["containers"][0]

    assert volumes_by_path(container) == {
        "/etc/ld.so.preload": "aliquot-gpu-config",
        "/run/gpushare/limits": "aliquot-gpu-config",
        "/usr/local/gpushare/libgpushare.so": "aliquot-gpu-library",
        "/run/gpushare/ledger": "aliquot-gpu-ledger",
    }
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/run/gpushare/ledger"]


def test_volumes() -> None:
    """The library is a file of the node that must exist; the ledger is in memory and private to the pod."""
    volumes = {volume.pop("name"): volume for volume in injected_spec()["volumes"]}

    assert volumes["aliquot-gpu-library"] == {"hostPath": {"path": "/lib/a/libgpushare.so", "type": "File"}}
    assert volumes["aliquot-gpu-ledger"]["emptyDir"]["medium"] == "Memory"
    assert volumes["aliquot-gpu-config"]["configMap"]["name"] == CONFIG
    assert "aliquot-gpu-gates" not in volumes


def test_variables_are_references() -> None:
    """Variables refer to the ConfigMap, which is written once the GPU is known."""
    variables = injected_spec()["containers"][0]["env"]

    assert {variable["name"] for variable in variables} == {
        "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "NVIDIA_DRIVER_CAPABILITIES",
    }  # fmt: skip
    for variable in variables:
        assert variable["valueFrom"] == {"configMapKeyRef": {"name": CONFIG, "key": variable["name"]}}


def test_config_map_has_every_key() -> None:
    """The ConfigMap has every key that a pod refers to."""
    spec = injected_spec(STRICT)
    data = config_map_data([allocation()], SETTINGS)

    container, init_container = spec["containers"][0], spec["initContainers"][0]
    keys = {variable["valueFrom"]["configMapKeyRef"]["key"] for variable in container["env"]}
    keys |= {
        mount["subPath"]
        for each in (container, init_container)
        for mount in each["volumeMounts"]
        if mount["name"] == "aliquot-gpu-config"
    }
    assert keys == set(data)


def allocation(mode: ComputeMode = ComputeMode.STRICT, **fields: Any) -> GpuAllocation:
    base = {"index": 0, "uuid": "GPU-1", "model": "", "milli": 500, "guaranteed_mib": 100, "limit_mib": 100}
    return GpuAllocation(**{**base, "mode": mode, "pod_uid": "u1", **fields})


def test_config_map_with_leases() -> None:
    """Ledger and gate are created with the sizes that the library expects."""
    files = config_map_data([allocation()], SETTINGS)["made"].splitlines()
    assert files == [f"{LEDGER_BYTES} /made/pod/ledger", f"{GATE_BYTES} /made/gates/GPU-1"]


def test_config_map_limits() -> None:
    """The limits name GPU, pod and bytes; the limit equals the guarantee, because nothing could reclaim memory."""
    data = config_map_data([allocation(ComputeMode.TIMESHARING, limit_mib=400)], SETTINGS)

    assert "gpu GPU-1 limit=104857600 guaranteed=104857600 weight=500" in data["limits"]
    assert data["limits"].startswith("gpushare 1\ntenant u1\n")
    assert data["NVIDIA_VISIBLE_DEVICES"] == data["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert data["RUNAI_NUM_OF_GPUS"] == "0.5"


def test_all_memory_of_a_gpu_is_limited_too() -> None:
    """A request for all memory of a GPU has a limit like any other."""
    assert "limits" in config_map_data([allocation(ComputeMode.TIMESHARING, milli=1000)], SETTINGS)


def test_gates_only_with_leases() -> None:
    """Pods that share compute time by leases mount the node's folder of gates."""
    spec = injected_spec(STRICT)

    assert volumes_by_path(spec["containers"][0])["/run/gpushare/gate"] == "aliquot-gpu-gates"
    gates = next(volume for volume in spec["volumes"] if volume["name"] == "aliquot-gpu-gates")
    assert gates["hostPath"] == {"path": "/run/g", "type": "Directory"}


def test_every_container() -> None:
    """All containers of a pod, init containers too, share one fraction."""
    spec = injected_spec(initContainers=[{"name": "first"}], containers=[{"name": "a"}, {"name": "b"}])

    for container in (*spec["initContainers"][1:], *spec["containers"]):
        assert "/run/gpushare/ledger" in volumes_by_path(container)


def test_init_container_comes_first() -> None:
    """The container that creates the files is the first, without GPU and without privileges."""
    spec = injected_spec(initContainers=[{"name": "first"}])

    init_container = spec["initContainers"][0]
    assert [each["name"] for each in spec["initContainers"]] == [INIT_CONTAINER, "first"]
    assert init_container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert init_container["securityContext"]["runAsNonRoot"]
    assert init_container["resources"]["limits"] == init_container["resources"]["requests"]


@pytest.mark.parametrize("request_", [HALF, STRICT])
def test_reinvocation(request_: FractionRequest) -> None:
    """A second injection adds nothing, wherever other webhooks have put their containers since."""
    once = inject(plain_pod(volumes=[{"name": "own", "emptyDir": {}}]), request_, CONFIG, SETTINGS)
    assert inject(once, request_, CONFIG, SETTINGS) == once

    first, *rest = once["spec"]["initContainers"]
    moved = {**once, "spec": {**once["spec"], "initContainers": [{"name": "other"}, first, *rest]}}
    again = inject(moved, request_, CONFIG, SETTINGS)["spec"]
    assert [each["name"] for each in again["initContainers"]] == [INIT_CONTAINER, "other"]
    assert volumes_by_path(again["initContainers"][1]) == volumes_by_path(again["containers"][0])


def test_own_fields_are_kept() -> None:
    """The pod's own volumes, mounts and variables are kept, also the value of a variable that is not enforced."""
    container = {
        "name": "main",
        "env": [{"name": "A", "value": "1"}, {"name": "RUNAI_NUM_OF_GPUS", "value": "2"}],
        "volumeMounts": [{"name": "own", "mountPath": "/data"}],
    }
    spec = injected_spec(containers=[container], volumes=[{"name": "own", "emptyDir": {}}])

    variables = {variable["name"]: variable for variable in spec["containers"][0]["env"]}
    assert variables["A"] == {"name": "A", "value": "1"}
    assert variables["RUNAI_NUM_OF_GPUS"]["value"] == "2"
    assert volumes_by_path(spec["containers"][0])["/data"] == "own"
    assert {"name": "own", "emptyDir": {}} in spec["volumes"]


def test_visible_devices_are_enforced() -> None:
    """A variable that would show every GPU of the node is replaced."""
    container = {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}

    variables = injected_spec(containers=[container])["containers"][0]["env"]
    visible = [variable for variable in variables if variable["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert len(visible) == 1
    assert "valueFrom" in visible[0]


@pytest.mark.parametrize("path", ["/etc/ld.so.preload", "/run/gpushare/limits", "/run/gpushare//ledger/"])
def test_injected_paths_cannot_be_covered(path: str) -> None:
    """A mount at an injected path is refused."""
    container = {"name": "main", "volumeMounts": [{"name": "own", "mountPath": path}]}

    with pytest.raises(Invalid, match=r"spec\.containers\[0\]\.volumeMounts\[0\]\.mountPath: must not be"):
        injected_spec(containers=[container])


def test_runtime_class() -> None:
    """If NVIDIA's runtime is not the default, pods get its RuntimeClass unless they name one."""
    nvidia = GpuSharingSettings(runtime_class="nvidia")
    assert injected_spec(settings=nvidia)["runtimeClassName"] == "nvidia"
    assert injected_spec(settings=nvidia, runtimeClassName="own")["runtimeClassName"] == "own"
    assert "runtimeClassName" not in injected_spec()


def test_config_map_names() -> None:
    """The name depends on namespace and pod; other names are not recognized as ours."""
    assert config_map_name("a", "p") == config_map_name("a", "p") != config_map_name("b", "p")
    assert is_config_map_name(config_map_name("a", "p"))
    assert not any(map(is_config_map_name, ("", "settings", "aliquot-gpu-", "aliquot-gpu-../x", "aliquot-gpu-A")))
