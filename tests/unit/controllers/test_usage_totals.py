"""The totals of projects and departments equal a recount, whatever happened before."""

from __future__ import annotations

from typing import TypedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aliquot import labels
from aliquot.api import Device, DeviceShare, Metadata, Namespace, Node, Pod, Project, devices_text, shares_text
from aliquot.api.pod import Container, PodSpec, PodStatus, Resources
from aliquot.api.project import ProjectSpec
from aliquot.controllers.usage import ResourceUsage, SumKey, UsageTotals

SPACES, PROJECTS, DEPARTMENTS, NODES = ["s1", "s2", "s3"], ["a", "b"], ["default", "d"], ["n1", "n2"]


class GpuRequest(TypedDict, total=False):
    """What a pod asks for: whole GPUs, a fraction, MiB on a number of devices, or a fraction that cannot be read."""

    whole: int
    fraction: str
    mib: int
    on: int
    bad: str


# Whole GPUs, a fraction, MiB, none, and one that cannot be read.
REQUESTS: list[GpuRequest] = [
    {"whole": 2},
    {"fraction": "0.3"},
    {"mib": 1000},
    {"mib": 333, "on": 2},
    {},
    {"bad": "x"},
]


def build_pod(space: str, name: str, request: GpuRequest, cpu: int, node: str, phase: str, deleted: bool) -> Pod:
    annotations: dict[str, str] = {}
    if "fraction" in request:
        annotations[labels.GPU_FRACTION] = request["fraction"]
    if "mib" in request:
        annotations |= {labels.GPU_MEMORY_MIB: str(request["mib"]), labels.GPU_DEVICES: str(request.get("on", 1))}
    if "bad" in request:
        annotations[labels.GPU_FRACTION] = request["bad"]
    if node and request:
        annotations[labels.DEVICES] = shares_text([DeviceShare(index=1, milli=1)])
    limits = {labels.GPU_RESOURCE: str(request["whole"])} if "whole" in request else {}
    container = Container(
        name="main", image="x", resources=Resources(requests={"cpu": f"{cpu}m", "memory": "1Ki"}, limits=limits)
    )
    return Pod(
        metadata=Metadata(name=name, namespace=space, annotations=annotations, deleted=1.0 if deleted else None),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase=phase),
    )


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.changed_keys: set[SumKey] = set()
        self.totals = UsageTotals(self.changed_keys.add)
        self.pods: dict[tuple[str, str], tuple[Pod, GpuRequest, int]] = {}
        self.spaces: dict[str, str] = {}
        self.projects: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.before: dict[str, ResourceUsage] = {}

    @rule(
        space=st.sampled_from(SPACES),
        name=st.sampled_from(["p", "q", "r"]),
        request=st.sampled_from(REQUESTS),
        cpu=st.integers(0, 3),
        node=st.sampled_from(["", *NODES]),
        phase=st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]),
        deleted=st.booleans(),
    )
    def pod(self, space: str, name: str, request: GpuRequest, cpu: int, node: str, phase: str, deleted: bool) -> None:
        new = build_pod(space, name, request, cpu, node, phase, deleted)
        old = self.pods.get((space, name), (None, None, None))[0]
        self.pods[space, name] = (new, request, cpu)
        self.totals.pod_changed((space, name), old, new)

    @rule(space=st.sampled_from(SPACES), name=st.sampled_from(["p", "q", "r"]))
    def pod_gone(self, space: str, name: str) -> None:
        if (space, name) in self.pods:
            self.totals.pod_changed((space, name), self.pods.pop((space, name))[0], None)

    @rule(space=st.sampled_from(SPACES), project=st.sampled_from(["", *PROJECTS]))
    def namespace(self, space: str, project: str) -> None:
        self.spaces[space] = project
        namespace_labels = {labels.PROJECT: project} if project else {}
        new = Namespace(metadata=Metadata(name=space, labels=namespace_labels))
        self.totals.namespace_changed(("", space), None, new)

    @rule(space=st.sampled_from(SPACES))
    def namespace_gone(self, space: str) -> None:
        self.spaces.pop(space, None)
        self.totals.namespace_changed(("", space), None, None)

    @rule(name=st.sampled_from(PROJECTS), department=st.sampled_from([None, *DEPARTMENTS]))
    def project(self, name: str, department: str | None) -> None:
        self.projects[name] = department or "default"
        new = Project(metadata=Metadata(name=name), spec=ProjectSpec(department=department))
        self.totals.project_changed(("", name), None, new)

    @rule(name=st.sampled_from(PROJECTS))
    def project_gone(self, name: str) -> None:
        self.projects.pop(name, None)
        self.totals.project_changed(("", name), None, None)

    @rule(name=st.sampled_from(NODES), mib=st.sampled_from([4000, 7000]))
    def node(self, name: str, mib: int) -> None:
        self.sizes[name] = mib
        devices = [Device(index=0, memory_mib=mib), Device(index=1, memory_mib=mib)]
        metadata = Metadata(name=name, annotations={labels.DEVICES: devices_text(devices)})
        self.totals.node_changed(("", name), None, Node(metadata=metadata))

    @rule(name=st.sampled_from(NODES))
    def node_gone(self, name: str) -> None:
        self.sizes.pop(name, None)
        self.totals.node_changed(("", name), None, None)

    # --- the recount

    def gpu(self, pod: Pod, request: GpuRequest) -> int:
        if "mib" not in request:
            return request.get("whole", 0) * 1000 + (300 if "fraction" in request else 0)
        size = self.sizes.get(pod.spec.node_name) or min(self.sizes.values(), default=0)
        return request.get("on", 1) * (-(-1000 * request["mib"] // size) if size else 1000)

    def recount(self, projects: set[str]) -> ResourceUsage:
        total = [0] * 6
        for (space, _), (pod, request, cpu) in self.pods.items():
            if (
                self.spaces.get(space) not in projects
                or pod.status.phase in ("Succeeded", "Failed")
                or "bad" in request
            ):
                continue
            amounts = (self.gpu(pod, request), cpu, 1024)
            for index, amount in enumerate(amounts):
                total[index] += amount if pod.spec.node_name else 0
                total[index + 3] += amount if pod.metadata.deleted is None else 0
        return ResourceUsage(*total)._replace(projects=len(projects & self.projects.keys()))

    @invariant()
    def equals_a_recount(self) -> None:
        for name in PROJECTS:
            assert self.totals.of_project(name) == self.recount({name})
        for name in DEPARTMENTS:
            own = {project for project, department in self.projects.items() if department == name}
            assert self.totals.of_department(name) == self.recount(own)

    @invariant()
    def every_change_is_reported(self) -> None:
        """The callback gets the key of every total that has changed."""
        now = {f"project/{name}": self.totals.of_project(name) for name in PROJECTS}
        now |= {f"department/{name}": self.totals.of_department(name) for name in DEPARTMENTS}
        reported = {f"{kind}/{name}" for kind, _, name in self.changed_keys}
        assert {key for key in now if now[key] != self.before.get(key, ResourceUsage())} <= reported
        self.before = now
        self.changed_keys.clear()


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
