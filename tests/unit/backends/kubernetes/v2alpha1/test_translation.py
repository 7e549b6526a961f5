"""Run:ai's fields, one by one, in the spec of a Workload; faults and left-out fields are reported with their path."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.backends.kubernetes.v2alpha1.definitions import definitions
from aliquot.backends.kubernetes.v2alpha1.fields import FIELDS, ITEMS, REFUSED, SPECIAL
from aliquot.backends.kubernetes.v2alpha1.translation import translate
from aliquot.errors import Fault

# Every field that Run:ai's documentation lists for the two kinds.
DOCUMENTED = {
    "active",
    "allowPrivilegeEscalation",
    "annotations",
    "arguments",
    "autoDeletionTimeAfterCompletionSeconds",
    "backoffLimit",
    "baseWorkload",
    "capabilities",
    "command",
    "completions",
    "cpu",
    "cpuLimit",
    "createHomeDir",
    "environment",
    "exposedUrls",
    "extendedResources",
    "gitSync",
    "gpu",
    "gpuLimit",
    "gpuMemory",
    "hostIpc",
    "hostNetwork",
    "image",
    "imagePullPolicy",
    "ingressUrl",
    "jupyter",
    "labels",
    "largeShm",
    "memory",
    "memoryLimit",
    "migProfile",
    "mountPropagation",
    "name",
    "namePrefix",
    "nfs",
    "nodePools",
    "nodeType",
    "notebookToken",
    "parallelism",
    "podAffinity",
    "podAffinitySchedulingRule",
    "podAffinityTopology",
    "ports",
    "preemptible",
    "preemptionLimit",
    "pvcs",
    "runAsGid",
    "runAsNonRoot",
    "runAsUid",
    "runAsUser",
    "s3",
    "seccompProfileType",
    "serviceType",
    "stdin",
    "supplementalGroups",
    "tensorboard",
    "tensorboardLogdir",
    "terminateAfterPreemption",
    "tolerations",
    "tty",
    "usage",
    "userId",
    "username",
    "volumes",
    "workingDir",
}


def value(given: Any) -> dict[str, Any]:
    return {"value": given}


def items(**given: Any) -> dict[str, Any]:
    return {"items": {name: value(item) for name, item in given.items()}}


def spec_of(kind: str = "TrainingWorkload", **fields: Any) -> dict[str, Any]:
    translation = translate(kind, "job-1", fields)
    assert (translation.faults, translation.left_out) == ([], [])
    return {key: item for key, item in translation.spec.items() if key != "type"}


def test_documented_example() -> None:
    """The smallest manifest of the documentation."""
    translation = translate(
        "TrainingWorkload", "job-1",
        {"gpu": value("1"), "image": value("gcr.io/run-ai-demo/quickstart"), "name": value("job-1")},
    )  # fmt: skip
    assert translation.spec == {"type": "training", "image": "gcr.io/run-ai-demo/quickstart", "compute": {"gpu": 1}}
    assert (translation.faults, translation.left_out) == ([], [])


def test_kind_decides_the_type() -> None:
    """InteractiveWorkload is interactive work."""
    assert translate("InteractiveWorkload", "w", {"image": value("x")}).spec["type"] == "interactive"


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"active": value(False)}, {"active": False}),
        ({"command": value("python")}, {"command": ["python"]}),
        ({"arguments": value('--text "Goodbye World"')}, {"args": ["--text", "Goodbye World"]}),
        ({"imagePullPolicy": value("ifNotPresent")}, {"imagePullPolicy": "IfNotPresent"}),
        ({"username": value("frej")}, {"user": "frej"}),
        ({"nodePools": value("fast slow")}, {"nodePools": ["fast", "slow"]}),
        ({"nodeType": value("dgx-2")}, {"nodeType": "dgx-2"}),
        ({"baseWorkload": "batch"}, {"template": "batch"}),
        ({"ttlAfterFinish": value("2h")}, {"autoDeletionTimeAfterCompletionSeconds": 7200}),
        ({"gpu": value("0.5"), "gpuLimit": value("0.8")}, {"compute": {"gpu": 0.5, "gpuLimit": 0.8}}),
        ({"gpuDevices": value(8)}, {"compute": {"gpu": 8}}),
        ({"gpu": value("0.5"), "gpuDevices": value(2)}, {"compute": {"gpu": 0.5, "gpuDevices": 2}}),
        ({"gpuMemory": value("4G")}, {"compute": {"gpuMemory": "4G"}}),
        ({"cpu": value("100m"), "memory": value("250M")}, {"compute": {"cpu": 0.1, "memory": "250M"}}),
        ({"migProfile": value("1g.5gb")}, {"compute": {"migProfile": "1g.5gb"}}),
        ({"largeShm": value(True)}, {"compute": {"largeShm": True}}),
        ({"runAsUid": value(1000), "runAsUser": value(True)}, {"security": {"runAsUid": 1000, "runAsUser": True}}),
        ({"supplementalGroups": value("1;2")}, {"security": {"supplementalGroups": [1, 2]}}),
        ({"capabilities": value("SYS_PTRACE NET_ADMIN")}, {"security": {"capabilities": ["SYS_PTRACE", "NET_ADMIN"]}}),
        ({"mountPropagation": value(True)}, {"storage": {"mountPropagation": "HostToContainer"}}),
        ({"environment": items(A="1")}, {"environment": [{"name": "A", "value": "1"}]}),
        (
            {"environment": items(A="SECRET:mine,key")},
            {"environment": [{"name": "A", "secret": {"name": "mine", "key": "key"}}]},
        ),
        ({"labels": items(user="frej")}, {"labels": {"user": "frej"}}),
        (
            {"ports": items(http={"container": 80, "external": 32282, "serviceType": "NodePort"})},
            {"ports": [{"name": "http", "container": 80, "external": 32282, "serviceType": "nodeport"}]},
        ),
        (
            {"pvcs": items(data={"claimName": "c", "existingPvc": True, "path": "/data", "readOnly": True})},
            {
                "storage": {
                    "pvc": [{"name": "data", "claimName": "c", "existing": True, "path": "/data", "readOnly": True}]
                }
            },
        ),
        (
            {"volumes": items(v={"path": "/raid", "mountPath": "/data"})},
            {"storage": {"hostPath": [{"name": "v", "path": "/raid", "mountPath": "/data"}]}},
        ),
        (
            {"tolerations": items(t={"key": "k", "operator": "Exists", "seconds": 5})},
            {"tolerations": [{"name": "t", "key": "k", "operator": "Exists", "tolerationSeconds": 5}]},
        ),
        (
            {"gitSync": items(code={"source": "https://git/x", "target": "/code", "rev": "v1"})},
            {"storage": {"git": [{"name": "code", "repository": "https://git/x", "path": "/code", "revision": "v1"}]}},
        ),
        ({"podAffinityTopology": value("rack")}, {"topology": {"required": "rack"}}),
        (
            {"podAffinityTopology": value("rack"), "podAffinitySchedulingRule": value("Preferred")},
            {"topology": {"preferred": "rack"}},
        ),
    ],
    ids=lambda fields: "+".join(fields),
)
def test_field(fields: dict[str, Any], spec: dict[str, Any]) -> None:
    """Each field has its counterpart in a Workload, in the Workload's form."""
    assert spec_of(**fields) == spec


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        (
            {"gpu": value("1.5")},
            "spec.gpu.value",
            "must be a whole number of GPUs, or a fraction of one below 1, not 1.5",
        ),
        ({"gpu": "1"}, "spec.gpu", "must be {value: ...}, not '1'"),
        ({"backoffLimit": value("many")}, "spec.backoffLimit.value", "must be a whole number, not 'many'"),
        ({"memory": value("lots")}, "spec.memory.value", "must be an amount such as 512Mi or 4G, not 'lots'"),
        (
            {"arguments": value("'open")},
            "spec.arguments.value",
            "must be words as a shell reads them: no closing quotation",
        ),
        ({"ports": items(http={"container": 0})}, "spec.ports.items.http.value.container", "must be at least 1, not 0"),
        ({"ports": [80]}, "spec.ports", "must be {items: {NAME: {value: ...}}}, not [80]"),
        ({"environment": {"items": {"A": "1"}}}, "spec.environment.items.A", "must be {value: ...}, not '1'"),
        (
            {"environment": items(A="SECRET:x")},
            "spec.environment.items.A.value",
            "must be SECRET:secret,key, not 'SECRET:x'",
        ),
        (
            {"pvcs": items(d={"path": "data"})},
            "spec.pvcs.items.d.value.path",
            r"must match ^/[^:\x00-\x1f]*$, not 'data'",
        ),
        ({"usage": "Try"}, "spec.usage", "must be Submit or Template, not 'Try'"),
        (
            {"gitSync": items(code={"source": "x", "password": "y"})},
            "spec.gitSync.items.code.value",
            "must have no password: give `secret`, the name of a Secret that holds it",
        ),
    ],
    ids=lambda case: "+".join(case) if isinstance(case, dict) else "",
)
def test_faults_have_paths_of_the_manifest(fields: dict[str, Any], path: str, text: str) -> None:
    """A fault has its path in the manifest, not in the Workload."""
    assert translate("TrainingWorkload", "job-1", fields).faults == [Fault(path, text)]


def test_all_faults_at_once() -> None:
    """All faults of a manifest are reported together."""
    translation = translate("TrainingWorkload", "job-1", {"gpu": value("x"), "cpu": value("y")})
    assert [fault.path for fault in translation.faults] == ["spec.gpu.value", "spec.cpu.value"]


def test_invalid_name() -> None:
    """Names of Workloads are shorter than those of other objects."""
    assert [fault.path for fault in translate("TrainingWorkload", "a" * 51, {}).faults] == ["metadata.name"]


@pytest.mark.parametrize("spec", [None, [], "x"])
def test_no_spec(spec: Any) -> None:
    """A spec that is no object counts as missing."""
    assert translate("TrainingWorkload", "job-1", spec).faults == [Fault("spec", "is required")]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"colour": value("red")}, "spec.colour"),
        ({"userId": value("7")}, "spec.userId"),
        ({"slotsPerWorker": value(2)}, "spec.slotsPerWorker"),
        ({"name": value("other")}, "spec.name.value"),
        ({"podAffinity": value(True)}, "spec.podAffinity"),
    ],
)
def test_left_out_fields(fields: dict[str, Any], path: str) -> None:
    """Fields without effect are reported, and the workload is created without them."""
    translation = translate("TrainingWorkload", "job-1", {"image": value("x"), **fields})
    assert ([fault.path for fault in translation.left_out], translation.faults) == ([path], [])
    assert translation.spec == {"type": "training", "image": "x"}


def test_template_is_not_run() -> None:
    """An object with `usage: Template` is only a template."""
    assert translate("TrainingWorkload", "job-1", {"usage": "Template"}).template_only


def test_every_documented_field_is_known() -> None:
    """No documented field is unknown."""
    assert DOCUMENTED - {*FIELDS, *ITEMS, *SPECIAL, *REFUSED} == set()


def test_every_field_has_a_schema() -> None:
    """Every field is in the definitions, with a description."""
    for definition in definitions():
        spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        assert set(spec["properties"]) == {*FIELDS, *ITEMS, *SPECIAL}
        assert all(item["description"] for item in spec["properties"].values())
