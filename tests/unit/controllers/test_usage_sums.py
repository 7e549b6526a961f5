"""The sums of projects and departments are those of a recount, whatever happened before."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aliquot import labels
from aliquot.api import Device, DeviceShare, Metadata, Namespace, Node, Pod, Project, devices_text, shares_text
from aliquot.api.pod import Container, PodSpec, PodStatus, Resources
from aliquot.api.project import ProjectSpec
from aliquot.controllers.usage import ResourceUsage, SumKey, UsageTotals

SPACES, PROJECTS, DEPARTMENTS, NODES = ["s1", "s2", "s3"], ["a", "b"], ["default", "d"], ["n1", "n2"]
# How much of a GPU: whole ones, a fraction, or MiB.
ASKS: list[dict[str, Any]] = [{"whole": 2}, {"fraction": "0.3"}, {"mib": 1000}, {"mib": 333, "on": 2}, {}, {"bad": "x"}]


def made_pod(space: str, name: str, ask: dict[str, Any], cpu: int, node: str, phase: str, deleted: bool) -> Pod:
    marks: dict[str, str] = {}
    if "fraction" in ask:
        marks[labels.GPU_FRACTION] = ask["fraction"]
    if "mib" in ask:
        marks |= {labels.GPU_MEMORY_MIB: str(ask["mib"]), labels.GPU_DEVICES: str(ask.get("on", 1))}
    if "bad" in ask:
        marks[labels.GPU_FRACTION] = ask["bad"]
    if node and ask:
        marks[labels.DEVICES] = shares_text([DeviceShare(index=1, milli=1)])
    limits = {labels.GPU_RESOURCE: str(ask["whole"])} if "whole" in ask else {}
    container = Container(
        name="main", image="x", resources=Resources(requests={"cpu": f"{cpu}m", "memory": "1Ki"}, limits=limits)
    )
    return Pod(
        metadata=Metadata(name=name, namespace=space, annotations=marks, deleted=1.0 if deleted else None),
        spec=PodSpec(node_name=node, containers=(container,)),
        status=PodStatus(phase=phase),
    )


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heard: set[SumKey] = set()
        self.totals = UsageTotals(self.heard.add)
        self.pods: dict[tuple[str, str], tuple[Pod, dict[str, Any], int]] = {}
        self.spaces: dict[str, str] = {}
        self.projects: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.before: dict[str, ResourceUsage] = {}

    @rule(
        space=st.sampled_from(SPACES),
        name=st.sampled_from(["p", "q", "r"]),
        ask=st.sampled_from(ASKS),
        cpu=st.integers(0, 3),
        node=st.sampled_from(["", *NODES]),
        phase=st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]),
        deleted=st.booleans(),
    )
    def pod(self, space: str, name: str, ask: dict[str, Any], cpu: int, node: str, phase: str, deleted: bool) -> None:
        new = made_pod(space, name, ask, cpu, node, phase, deleted)
        old = self.pods.get((space, name), (None, None, None))[0]
        self.pods[space, name] = (new, ask, cpu)
        self.totals.pod_changed((space, name), old, new)

    @rule(space=st.sampled_from(SPACES), name=st.sampled_from(["p", "q", "r"]))
    def pod_gone(self, space: str, name: str) -> None:
        if (space, name) in self.pods:
            self.totals.pod_changed((space, name), self.pods.pop((space, name))[0], None)

    @rule(space=st.sampled_from(SPACES), project=st.sampled_from(["", *PROJECTS]))
    def namespace(self, space: str, project: str) -> None:
        self.spaces[space] = project
        marks = {labels.PROJECT: project} if project else {}
        self.totals.namespace_changed(("", space), None, Namespace(metadata=Metadata(name=space, labels=marks)))

    @rule(space=st.sampled_from(SPACES))
    def namespace_gone(self, space: str) -> None:
        self.spaces.pop(space, None)
        self.totals.namespace_changed(("", space), None, None)

    @rule(name=st.sampled_from(PROJECTS), department=st.sampled_from([None, *DEPARTMENTS]))
    def project(self, name: str, department: str | None) -> None:
        self.projects[name] = department or "default"
        found = Project(metadata=Metadata(name=name), spec=ProjectSpec(department=department))
        self.totals.project_changed(("", name), None, found)

    @rule(name=st.sampled_from(PROJECTS))
    def project_gone(self, name: str) -> None:
        self.projects.pop(name, None)
        self.totals.project_changed(("", name), None, None)

    @rule(name=st.sampled_from(NODES), mib=st.sampled_from([4000, 7000]))
    def node(self, name: str, mib: int) -> None:
        self.sizes[name] = mib
        marks = {labels.DEVICES: devices_text([Device(index=0, memory_mib=mib), Device(index=1, memory_mib=mib)])}
        self.totals.node_changed(("", name), None, Node(metadata=Metadata(name=name, annotations=marks)))

    @rule(name=st.sampled_from(NODES))
    def node_gone(self, name: str) -> None:
        self.sizes.pop(name, None)
        self.totals.node_changed(("", name), None, None)

    # --- counted anew

    def gpu(self, pod: Pod, ask: dict[str, Any]) -> int:
        if "mib" not in ask:
            return ask.get("whole", 0) * 1000 + (300 if "fraction" in ask else 0)
        size = self.sizes.get(pod.spec.node_name) or min(self.sizes.values(), default=0)
        return ask.get("on", 1) * (-(-1000 * ask["mib"] // size) if size else 1000)

    def recount(self, projects: set[str]) -> ResourceUsage:
        total = [0] * 6
        for (space, _), (pod, ask, cpu) in self.pods.items():
            if self.spaces.get(space) not in projects or pod.status.phase in ("Succeeded", "Failed") or "bad" in ask:
                continue
            amounts = (self.gpu(pod, ask), cpu, 1024)
            for index, amount in enumerate(amounts):
                total[index] += amount if pod.spec.node_name else 0
                total[index + 3] += amount if pod.metadata.deleted is None else 0
        return ResourceUsage(*total, projects=len(projects & self.projects.keys()))

    @invariant()
    def equals_a_recount(self) -> None:
        for name in PROJECTS:
            assert self.totals.of_project(name) == self.recount({name})
        for name in DEPARTMENTS:
            own = {project for project, department in self.projects.items() if department == name}
            assert self.totals.of_department(name) == self.recount(own)

    @invariant()
    def every_change_is_announced(self) -> None:
        """Whoever writes the sums down hears of exactly those that may have changed."""
        now = {f"project/{name}": self.totals.of_project(name) for name in PROJECTS}
        now |= {f"department/{name}": self.totals.of_department(name) for name in DEPARTMENTS}
        heard = {f"{kind}/{name}" for kind, _, name in self.heard}
        assert {place for place in now if now[place] != self.before.get(place, ResourceUsage())} <= heard
        self.before = now
        self.heard.clear()


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
