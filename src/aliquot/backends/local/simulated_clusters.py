"""Simulated clusters for `aliquot up --simulate NAME-OR-FILE`.

    nodes:
      - name: dgx1-1
        cpu: 80
        memory: 512Gi
        gpus: [{count: 8, model: Tesla V100-SXM2-32GB, memoryMiB: 32510}]
    projects:
      team-a: {quota: {gpu: 4}}          # a project's spec; created at the first start, then left alone

The presets that come with the platform are such files, in the folder `clusters` next to this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from aliquot.api import KINDS, Device, Metadata, Project, check_name
from aliquot.api.field_types import EMPTY_MAP, Bytes, Labels, Milli, Positive
from aliquot.api.project import ProjectSpec
from aliquot.api.serialization import record
from aliquot.backends.local import yaml_files
from aliquot.backends.local.devices.node_devices import DEFAULT_PODS, NodeFacts
from aliquot.errors import Fault, Invalid

_FOLDER = resources.files("aliquot.backends.local") / "clusters"
# More than any machine has, so that a typing error is refused instead of filling the memory.
_MAX_GPUS, _MAX_NODES = 64, 10_000


@dataclass(frozen=True, slots=True)
class Preset:
    """A simulated cluster: its nodes, and the projects to create at the first start."""

    nodes: tuple[NodeFacts, ...]
    projects: tuple[Project, ...]


@record
class GpuGroup:
    """Equal GPUs of a node."""

    model: str
    """Such as Tesla V100-SXM2-32GB."""
    memory_mib: Positive
    """Memory of each, in MiB."""
    count: Annotated[int, Field(ge=1, le=_MAX_GPUS)] = 1
    """How many."""


@record
class SimulatedNode:
    """A node to simulate."""

    name: str
    """Unique in the file."""
    labels: Labels = EMPTY_MAP
    """Labels of the node."""
    cpu: Milli = 8000
    """Cores."""
    memory: Bytes = 32 << 30
    """Memory, such as 512Gi."""
    pods: Positive = DEFAULT_PODS
    """How many pods may run at once."""
    gpus: tuple[GpuGroup, ...] = ()
    """Its GPUs, numbered in this order."""


@record
class Cluster:
    """A cluster file."""

    nodes: Annotated[tuple[SimulatedNode, ...], Field(max_length=_MAX_NODES)] = ()
    """Nodes to simulate."""
    projects: Mapping[str, ProjectSpec] = EMPTY_MAP
    """Projects to create at the first start, by name."""

    def faults(self) -> Iterator[Fault]:
        names: set[str] = set()
        for index, node in enumerate(self.nodes):
            yield from _name_faults("Node", node.name, f"nodes[{index}].name")
            if node.name in names:
                yield Fault(f"nodes[{index}].name", f"appears twice: {node.name!r}")
            names.add(node.name)
            if sum(group.count for group in node.gpus) > _MAX_GPUS:
                yield Fault(f"nodes[{index}].gpus", f"must have at most {_MAX_GPUS} GPUs together")
        for name in self.projects:
            yield from _name_faults("Project", name, f"projects[{name!r}]")


def names() -> tuple[str, ...]:
    """The presets that come with the platform."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml")))


def load(name_or_path: str) -> Preset:
    """A preset by name, or a file by path; `Invalid` with every fault of the file."""
    if name_or_path in names():
        name = f"{name_or_path}.yaml"
        return _preset(yaml_files.parse(Cluster, (_FOLDER / name).read_text(encoding="utf-8"), name))
    path = Path(name_or_path).expanduser()
    if path.suffix or path.parent != Path() or path.exists():
        return _preset(yaml_files.read(Cluster, path))
    raise Invalid(
        f"no preset is called {name_or_path!r}, and there is no such file",
        hint=f"presets: {', '.join(names())}; or give the path of a file",
    )


def _preset(cluster: Cluster) -> Preset:
    projects = (Project(metadata=Metadata(name=name), spec=spec) for name, spec in cluster.projects.items())
    return Preset(nodes=tuple(map(_facts, cluster.nodes)), projects=tuple(projects))


def _facts(node: SimulatedNode) -> NodeFacts:
    return NodeFacts(
        name=node.name,
        labels=dict(node.labels),
        devices=tuple(_devices(node)),
        cpu=node.cpu,
        memory=node.memory,
        pods=node.pods,
        simulated=True,
    )


def _devices(node: SimulatedNode) -> Iterator[Device]:
    gpus = (group for group in node.gpus for _ in range(group.count))
    for index, group in enumerate(gpus):
        # Stable across restarts, unique in the cluster, and visibly not a real one.
        uuid = f"GPU-sim-{node.name}-{index}"
        yield Device(index=index, uuid=uuid, model=group.model, memory_mib=group.memory_mib)


def _name_faults(kind: str, name: str, path: str) -> Iterator[Fault]:
    try:
        check_name(next(known for known in KINDS if known.name == kind), name)
    except Invalid as exc:
        yield Fault(path, exc.faults[0].text)
