"""The fence around a part of a GPU, as it is written into a pod and its ConfigMap."""

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
from aliquot.gpu.injection import GATE_BYTES, LEDGER_BYTES

CONFIG = "aliquot-gpu-0123456789abcdef"
SETTINGS = GpuSharingSettings(image="files", library_folder="/lib/a", gate_folder="/run/g")
HALF = FractionRequest(milli=500)
STRICT = FractionRequest(milli=500, options=SharingOptions(mode=ComputeMode.STRICT))


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "i"}], **spec}}


def given(part: FractionRequest = HALF, settings: GpuSharingSettings = SETTINGS, **spec: Any) -> dict[str, Any]:
    return inject(pod(**spec), part, CONFIG, settings)["spec"]


def places(container: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def test_files_and_mounts() -> None:
    """A container gets library, preload, limits and ledger, each as one file; only the ledger can be written."""
    container = given()["containers"][0]

    assert places(container) == {
        "/etc/ld.so.preload": "aliquot-gpu-config",
        "/run/gpushare/limits": "aliquot-gpu-config",
        "/usr/local/gpushare/libgpushare.so": "aliquot-gpu-library",
        "/run/gpushare/ledger": "aliquot-gpu-ledger",
    }
    writable = [one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")]
    assert writable == ["/run/gpushare/ledger"]


def test_volumes() -> None:
    """The library is the node's and must be there; the ledger is in memory and the pod's own."""
    volumes = {one.pop("name"): one for one in given()["volumes"]}

    assert volumes["aliquot-gpu-library"] == {"hostPath": {"path": "/lib/a/libgpushare.so", "type": "File"}}
    assert volumes["aliquot-gpu-ledger"]["emptyDir"]["medium"] == "Memory"
    assert volumes["aliquot-gpu-config"]["configMap"]["name"] == CONFIG
    assert "aliquot-gpu-gates" not in volumes


def test_variables_are_references() -> None:
    """Which GPU it is stands in the ConfigMap, which is written later."""
    variables = given()["containers"][0]["env"]

    assert {one["name"] for one in variables} == {
        "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "NVIDIA_DRIVER_CAPABILITIES",
    }  # fmt: skip
    for one in variables:
        assert one["valueFrom"] == {"configMapKeyRef": {"name": CONFIG, "key": one["name"]}}


def test_config_has_what_is_referred_to() -> None:
    """Every key that a pod refers to is in the ConfigMap of its slices."""
    spec = given(STRICT)
    data = config_map_data([slice_()], SETTINGS)

    container, step = spec["containers"][0], spec["initContainers"][0]
    keys = {one["valueFrom"]["configMapKeyRef"]["key"] for one in container["env"]}
    keys |= {
        mount["subPath"]
        for one in (container, step)
        for mount in one["volumeMounts"]
        if mount["name"] == "aliquot-gpu-config"
    }
    assert keys == set(data)


def slice_(mode: ComputeMode = ComputeMode.STRICT, **more: Any) -> GpuAllocation:
    base = {"index": 0, "uuid": "GPU-1", "model": "", "milli": 500, "guaranteed_mib": 100, "limit_mib": 100}
    return GpuAllocation(**{**base, "mode": mode, "pod_uid": "u1", **more})


def test_config_of_a_leased_part() -> None:
    """Ledger and gate are made with the sizes that the library wants."""
    made = config_map_data([slice_()], SETTINGS)["made"].splitlines()
    assert made == [f"{LEDGER_BYTES} /made/pod/ledger", f"{GATE_BYTES} /made/gates/GPU-1"]


def test_config_limits() -> None:
    """The limits name GPU, tenant and bytes; nothing is lent where nobody could take it back."""
    data = config_map_data([slice_(ComputeMode.TIMESHARING, limit_mib=400)], SETTINGS)

    assert "gpu GPU-1 limit=104857600 guaranteed=104857600 weight=500" in data["limits"]
    assert data["limits"].startswith("gpushare 1\ntenant u1\n")
    assert data["NVIDIA_VISIBLE_DEVICES"] == data["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert data["RUNAI_NUM_OF_GPUS"] == "0.5"


def test_all_memory_of_a_gpu_is_fenced_too() -> None:
    """Who asks for as much memory as a GPU has is held to it like others."""
    assert "limits" in config_map_data([slice_(ComputeMode.TIMESHARING, milli=1000)], SETTINGS)


def test_gates_only_where_time_is_leased() -> None:
    """Pods that share time by leases see the node's folder of gates."""
    spec = given(STRICT)

    assert places(spec["containers"][0])["/run/gpushare/gate"] == "aliquot-gpu-gates"
    gates = next(one for one in spec["volumes"] if one["name"] == "aliquot-gpu-gates")
    assert gates["hostPath"] == {"path": "/run/g", "type": "Directory"}


def test_every_container() -> None:
    """All containers of a pod, init containers too, share one part."""
    spec = given(initContainers=[{"name": "first"}], containers=[{"name": "a"}, {"name": "b"}])

    for container in (*spec["initContainers"][1:], *spec["containers"]):
        assert "/run/gpushare/ledger" in places(container)


def test_files_are_made_before_all_else() -> None:
    """The step that makes the files is the first, with no GPU and no rights."""
    spec = given(initContainers=[{"name": "first"}])

    step = spec["initContainers"][0]
    assert [one["name"] for one in spec["initContainers"]] == [INIT_CONTAINER, "first"]
    assert step["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert step["securityContext"]["runAsNonRoot"]
    assert step["resources"]["limits"] == step["resources"]["requests"]


@pytest.mark.parametrize("part", [HALF, STRICT])
def test_asked_again(part: FractionRequest) -> None:
    """A pod that has its fence gets nothing twice, wherever others have put their containers since."""
    once = inject(pod(volumes=[{"name": "own", "emptyDir": {}}]), part, CONFIG, SETTINGS)
    assert inject(once, part, CONFIG, SETTINGS) == once

    first, *rest = once["spec"]["initContainers"]
    moved = {**once, "spec": {**once["spec"], "initContainers": [{"name": "other"}, first, *rest]}}
    again = inject(moved, part, CONFIG, SETTINGS)["spec"]
    assert [one["name"] for one in again["initContainers"]] == [INIT_CONTAINER, "other"]
    assert places(again["initContainers"][1]) == places(again["containers"][0])


def test_own_things_stay() -> None:
    """Volumes, mounts and variables of the pod's own stay, also a value for a variable that only helps."""
    container = {
        "name": "main",
        "env": [{"name": "A", "value": "1"}, {"name": "RUNAI_NUM_OF_GPUS", "value": "2"}],
        "volumeMounts": [{"name": "own", "mountPath": "/data"}],
    }
    spec = given(containers=[container], volumes=[{"name": "own", "emptyDir": {}}])

    variables = {one["name"]: one for one in spec["containers"][0]["env"]}
    assert variables["A"] == {"name": "A", "value": "1"}
    assert variables["RUNAI_NUM_OF_GPUS"]["value"] == "2"
    assert places(spec["containers"][0])["/data"] == "own"
    assert {"name": "own", "emptyDir": {}} in spec["volumes"]


def test_more_gpus_cannot_be_asked_for_by_variable() -> None:
    """A variable that would show every GPU of the node is replaced."""
    container = {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}

    variables = given(containers=[container])["containers"][0]["env"]
    seen = [one for one in variables if one["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert len(seen) == 1
    assert "valueFrom" in seen[0]


@pytest.mark.parametrize("place", ["/etc/ld.so.preload", "/run/gpushare/limits", "/run/gpushare//ledger/"])
def test_fence_cannot_be_covered(place: str) -> None:
    """A mount where the fence must be is refused."""
    container = {"name": "main", "volumeMounts": [{"name": "own", "mountPath": place}]}

    with pytest.raises(Invalid, match=r"spec\.containers\[0\]\.volumeMounts\[0\]\.mountPath: must not be"):
        given(containers=[container])


def test_runtime_class() -> None:
    """Where NVIDIA's runtime is not the default pods are given it, unless they name one."""
    nvidia = GpuSharingSettings(runtime_class="nvidia")
    assert given(settings=nvidia)["runtimeClassName"] == "nvidia"
    assert given(settings=nvidia, runtimeClassName="own")["runtimeClassName"] == "own"
    assert "runtimeClassName" not in given()


def test_config_names() -> None:
    """Pods of one name have one ConfigMap, others have others; a name of somebody else is not taken for ours."""
    assert config_map_name("a", "p") == config_map_name("a", "p") != config_map_name("b", "p")
    assert is_config_map_name(config_map_name("a", "p"))
    assert not any(map(is_config_map_name, ("", "settings", "aliquot-gpu-", "aliquot-gpu-../x", "aliquot-gpu-A")))
