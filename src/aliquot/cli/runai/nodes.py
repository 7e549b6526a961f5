"""`list nodes`, `top node` and `describe node`: the capacity of the nodes and its allocation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from aliquot import labels, units
from aliquot.api import Device, DeviceShare, Node, Pod, devices_of, shares_of, to_json
from aliquot.cli import output
from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.get import output_options
from aliquot.cli.program import CommandSpec, LazyGroup
from aliquot.cli.runai.job_lookup import list_pods, project_of_namespace, projects_by_namespace
from aliquot.cli.runai.program import RunaiCommand
from aliquot.errors import Invalid, NotFound
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store
from aliquot.units import GPU

TITLES = ("NODE", "GPU TYPE", "GPUs (Allocated/Total)", "GPU UTIL", "GPU MEM", "CPU", "MEM", "STATUS")
_GIB = 1 << 30


@dataclass(frozen=True)
class NodeUsage:
    """A node, its GPUs, and the pods that run on it with their shares of the GPUs."""

    node: Node
    devices: tuple[Device, ...]
    pods: tuple[tuple[Pod, tuple[DeviceShare, ...]], ...]

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @property
    def shares(self) -> list[DeviceShare]:
        return [share for _, shares in self.pods for share in shares]

    @property
    def gpu_type(self) -> str:
        return ", ".join(dict.fromkeys(device.model for device in self.devices if device.model))

    @property
    def status(self) -> str:
        ready = any(
            condition.type == "Ready" and condition.status == "True" for condition in self.node.status.conditions
        )
        text = "Ready" if ready else "NotReady"
        if self.node.spec.unschedulable:
            text += ",SchedulingDisabled"
        return f"{text} (simulated)" if self.simulated else text

    @property
    def simulated(self) -> bool:
        labels_and_annotations = {**self.node.metadata.labels, **self.node.metadata.annotations}
        return labels_and_annotations.get(labels.SIMULATED) == "true"


def node_usage(node: Node, pods: Sequence[Pod]) -> NodeUsage:
    """The usage of one node.

    Pods that have ended do not count, and neither do reservation pods: the pods that share their GPU count instead. An
    annotation that cannot be parsed counts as empty.
    """
    live = [
        pod
        for pod in pods
        if pod.spec.node_name == node.metadata.name
        and pod.status.phase not in ("Succeeded", "Failed")
        and pod.metadata.namespace not in labels.PLACEHOLDER_NAMESPACES
    ]
    devices = _or_empty(devices_of, node)
    shares_by_pod = {pod.metadata.uid: _or_empty(shares_of, pod) for pod in live}
    taken = {share.index for shares in shares_by_pod.values() for share in shares}
    free = [device for device in devices if device.index not in taken]
    pods_with_shares = []
    for pod in live:
        shares = shares_by_pod[pod.metadata.uid]
        if labels.DEVICES not in pod.metadata.annotations:
            # Another scheduler bound the pod. The number of its GPUs is known; which ones, only its kubelet knows.
            count = _whole_gpus(pod)
            shares = tuple(
                DeviceShare(index=device.index, milli=GPU, memory_mib=device.memory_mib) for device in free[:count]
            )
            free = free[count:]
        pods_with_shares.append((pod, shares))
    return NodeUsage(node, devices, tuple(pods_with_shares))


def _whole_gpus(pod: Pod) -> int:
    return int(sum(_amount(container.resources.limits, labels.GPU_RESOURCE) for container in pod.spec.containers))


def _or_empty(read: Any, owner: Any) -> Any:
    try:
        return read(owner)
    except Invalid:
        return ()


async def read_node_usage(driver: StoreDriver, names: Sequence[str] = ()) -> list[NodeUsage]:
    nodes = sorted((await Store(driver).list(Node)).items, key=lambda node: node.metadata.name)
    for name in names:
        if name not in {node.metadata.name for node in nodes}:
            raise NotFound(f"node {name!r} does not exist", hint="`runai list nodes` shows those there are")
    pods = await list_pods(driver, None)
    return [node_usage(node, pods) for node in nodes if not names or node.metadata.name in names]


def node_row(usage: NodeUsage) -> list[str]:
    taken = sum(share.milli for share in usage.shares)
    held = sum(share.memory_mib for share in usage.shares)
    memory = sum(device.memory_mib for device in usage.devices)
    return [
        usage.name,
        usage.gpu_type or "-",
        f"{units.whole_units(taken):g}/{len(usage.devices)}",
        _utilization(usage),
        f"{held}/{memory}MiB" if usage.devices else "-",
        f"{_requested(usage, 'cpu'):g}/{_allocatable(usage, 'cpu'):g}",
        f"{_requested(usage, 'memory') / _GIB:.1f}/{_allocatable(usage, 'memory') / _GIB:.1f}Gi",
        usage.status,
    ]


def _utilization(usage: NodeUsage) -> str:
    """The mean utilization of all GPUs of the node, idle ones included; `-` where it is not measured."""
    per_gpu = usage.node.metadata.annotations.get(labels.GPU_UTILIZATION, "").split(",")
    if not usage.devices or not all(percent.isdigit() for percent in per_gpu):
        return "-"
    return f"{sum(map(int, per_gpu)) / len(usage.devices):.0f}%"


def _allocatable(usage: NodeUsage, resource: str) -> float:
    return _amount(usage.node.status.allocatable or usage.node.status.capacity, resource)


def _requested(usage: NodeUsage, resource: str) -> float:
    containers = [container for pod, _ in usage.pods for container in pod.spec.containers]
    return sum(_amount(container.resources.requests, resource) for container in containers)


def _amount(quantities: Mapping[str, str], resource: str) -> float:
    text = quantities.get(resource, "0")
    try:
        return units.milli(text) / 1000 if resource == "cpu" else float(units.quantity(text))
    except ValueError:
        return 0.0  # other programs may write invalid quantities


def list_nodes(context: CommandContext, names: Sequence[str], output_format: str, *, headers: bool) -> int:
    usages = context.run(lambda driver: read_node_usage(driver, names))
    if output_format in ("json", "yaml"):
        items = [to_json(usage.node) for usage in usages]
        click.echo(output.dump({"apiVersion": "v1", "kind": "List", "items": items}, output_format))
    elif output_format == "name":
        for usage in usages:
            click.echo(f"node/{usage.name}")
    else:
        click.echo(output.table(TITLES, list(map(node_row, usages)), headers=headers))
    return 0


@click.command("node", cls=RunaiCommand)
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("-d", "--details", is_flag=True, help="Print each GPU on a line of its own.")
@output_options
def top_node(names: tuple[str, ...], details: bool, output_format: str, no_headers: bool) -> int:
    """Show the allocation of the nodes."""
    if not details or output_format in ("json", "yaml", "name"):
        return list_nodes(command_context(), names, output_format, headers=not no_headers)
    usages = command_context().run(lambda driver: read_node_usage(driver, names))
    rows = [cells for usage in usages for cells in device_rows(usage)]
    click.echo(output.table(("NODE", *DEVICE_TITLES), rows, headers=not no_headers))
    return 0


DEVICE_TITLES = ("GPU", "TYPE", "ALLOCATED", "MEM", "JOBS")


def device_rows(usage: NodeUsage, projects: dict[str, str] | None = None) -> Iterator[list[str]]:
    """One row per GPU: its allocation, and the pods that use it."""
    for device in usage.devices:
        users, taken, held = [], 0, 0
        for pod, shares in usage.pods:
            for share in shares:
                if share.index == device.index:
                    users.append(f"{project_of_namespace(pod.metadata.namespace, projects or {})}/{pod.metadata.name}")
                    taken, held = taken + share.milli, held + share.memory_mib
        memory = f"{held}/{device.memory_mib}MiB"
        model = device.model + ("" if device.healthy else " (not well)")
        share_text = f"{units.whole_units(taken):g}"
        yield [usage.name, str(device.index), model or "-", share_text, memory, ", ".join(users) or "-"]


def describe_nodes(context: CommandContext, names: Sequence[str], output_format: str = "wide") -> int:
    if output_format in ("json", "yaml"):
        return list_nodes(context, names, output_format, headers=True)

    async def read(driver: StoreDriver) -> tuple[list[NodeUsage], dict[str, str]]:
        return await read_node_usage(driver, names), await projects_by_namespace(driver)

    usages, projects = context.run(read)
    blocks = ["\n".join(description_lines(usage, projects, time.time())) for usage in usages]
    click.echo("\n\n".join(blocks))
    return 0


def description_lines(usage: NodeUsage, projects: dict[str, str], now: float) -> Iterator[str]:
    for title, text in zip(TITLES, node_row(usage), strict=True):
        yield f"{title}: {output.printable(text)}"
    yield f"AGE: {output.age(now - (usage.node.metadata.created or now))}"
    labels_text = ", ".join(f"{key}={value}" for key, value in sorted(usage.node.metadata.labels.items()))
    yield f"LABELS: {output.printable(labels_text) or '-'}"
    if usage.node.status.conditions:
        yield "\nCONDITIONS:"
        rows = [[each.type, each.status, each.reason, each.message] for each in usage.node.status.conditions]
        yield output.table(("TYPE", "STATUS", "REASON", "MESSAGE"), rows)
    if usage.devices:
        yield "\nGPUs:"
        rows = [cells[1:] for cells in device_rows(usage, projects)]
        yield output.table(DEVICE_TITLES, rows)


_TOP_NODE = CommandSpec("aliquot.cli.runai.nodes", "top_node", "Show the allocation of the nodes.")
top = LazyGroup(
    "top", {"node": _TOP_NODE, "nodes": _TOP_NODE._replace(hidden=True)}, help="Show the allocation of resources."
)
