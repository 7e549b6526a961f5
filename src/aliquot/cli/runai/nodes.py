"""`list nodes`, `top node` and `describe node`: what the machines have, and what is taken of it."""

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
    """A node, its devices, and the pods that hold something on it."""

    node: Node
    devices: tuple[Device, ...]
    holders: tuple[tuple[Pod, tuple[DeviceShare, ...]], ...]

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @property
    def shares(self) -> list[DeviceShare]:
        return [share for _, shares in self.holders for share in shares]

    @property
    def gpu_type(self) -> str:
        return ", ".join(dict.fromkeys(device.model for device in self.devices if device.model))

    @property
    def status(self) -> str:
        ready = any(each.type == "Ready" and each.status == "True" for each in self.node.status.conditions)
        word = "Ready" if ready else "NotReady"
        if self.node.spec.unschedulable:
            word += ",SchedulingDisabled"
        return f"{word} (simulated)" if self.simulated else word

    @property
    def simulated(self) -> bool:
        marks = {**self.node.metadata.labels, **self.node.metadata.annotations}
        return marks.get(labels.SIMULATED) == "true"


def node_usage(node: Node, pods: Sequence[Pod]) -> NodeUsage:
    """Pods that have ended hold nothing, and reservations hold for others, who say what; an annotation nobody can read
    counts as none."""
    live = [
        pod
        for pod in pods
        if pod.spec.node_name == node.metadata.name
        and pod.status.phase not in ("Succeeded", "Failed")
        and pod.metadata.namespace not in labels.PLACEHOLDER_NAMESPACES
    ]
    devices = _readable(devices_of, node)
    named = {pod.metadata.uid: _readable(shares_of, pod) for pod in live}
    taken = {share.index for shares in named.values() for share in shares}
    free = [device for device in devices if device.index not in taken]
    holders = []
    for pod in live:
        shares = named[pod.metadata.uid]
        if labels.DEVICES not in pod.metadata.annotations:
            # Placed by another scheduler: how many it has is known, which ones only its kubelet knows.
            count = _whole_gpus(pod)
            shares = tuple(DeviceShare(index=one.index, milli=GPU, memory_mib=one.memory_mib) for one in free[:count])
            free = free[count:]
        holders.append((pod, shares))
    return NodeUsage(node, devices, tuple(holders))


def _whole_gpus(pod: Pod) -> int:
    return int(sum(_amount(container.resources.limits, labels.GPU_RESOURCE) for container in pod.spec.containers))


def _readable(read: Any, owner: Any) -> Any:
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


def node_row(each: NodeUsage) -> list[str]:
    taken = sum(share.milli for share in each.shares)
    held = sum(share.memory_mib for share in each.shares)
    memory = sum(device.memory_mib for device in each.devices)
    return [
        each.name,
        each.gpu_type or "-",
        f"{units.whole_units(taken):g}/{len(each.devices)}",
        _busy(each),
        f"{held}/{memory}MiB" if each.devices else "-",
        f"{_asked(each, 'cpu'):g}/{_has(each, 'cpu'):g}",
        f"{_asked(each, 'memory') / _GIB:.1f}/{_has(each, 'memory') / _GIB:.1f}Gi",
        each.status,
    ]


def _busy(each: NodeUsage) -> str:
    """Over all its GPUs; idle ones count as 0."""
    per_gpu = each.node.metadata.annotations.get(labels.GPU_UTILIZATION, "").split(",")
    if not each.devices or not all(one.isdigit() for one in per_gpu):
        return "-"  # nobody measures it
    return f"{sum(map(int, per_gpu)) / len(each.devices):.0f}%"


def _has(each: NodeUsage, resource: str) -> float:
    return _amount(each.node.status.allocatable or each.node.status.capacity, resource)


def _asked(each: NodeUsage, resource: str) -> float:
    containers = [container for pod, _ in each.holders for container in pod.spec.containers]
    return sum(_amount(container.resources.requests, resource) for container in containers)


def _amount(quantities: Mapping[str, str], resource: str) -> float:
    text = quantities.get(resource, "0")
    try:
        return units.milli(text) / 1000 if resource == "cpu" else float(units.quantity(text))
    except ValueError:
        return 0.0  # other programs write these


def list_nodes(context: CommandContext, names: Sequence[str], output_format: str, *, headers: bool) -> int:
    found = context.run(lambda driver: read_node_usage(driver, names))
    if output_format in ("json", "yaml"):
        items = [to_json(each.node) for each in found]
        click.echo(output.dump({"apiVersion": "v1", "kind": "List", "items": items}, output_format))
    elif output_format == "name":
        for each in found:
            click.echo(f"node/{each.name}")
    else:
        click.echo(output.table(TITLES, list(map(node_row, found)), headers=headers))
    return 0


@click.command("node", cls=RunaiCommand)
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("-d", "--details", is_flag=True, help="Each GPU on a line of its own.")
@output_options
def top_node(names: tuple[str, ...], details: bool, output_format: str, no_headers: bool) -> int:
    """Show how full the nodes are."""
    if not details or output_format in ("json", "yaml", "name"):
        return list_nodes(command_context(), names, output_format, headers=not no_headers)
    found = command_context().run(lambda driver: read_node_usage(driver, names))
    rows = [cells for each in found for cells in device_rows(each)]
    click.echo(output.table(("NODE", *DEVICE_TITLES), rows, headers=not no_headers))
    return 0


DEVICE_TITLES = ("GPU", "TYPE", "ALLOCATED", "MEM", "JOBS")


def device_rows(each: NodeUsage, known: dict[str, str] | None = None) -> Iterator[list[str]]:
    """One row per GPU: how much of it is taken, and by whom."""
    for device in each.devices:
        users, taken, held = [], 0, 0
        for pod, shares in each.holders:
            for share in shares:
                if share.index == device.index:
                    users.append(f"{project_of_namespace(pod.metadata.namespace, known or {})}/{pod.metadata.name}")
                    taken, held = taken + share.milli, held + share.memory_mib
        memory = f"{held}/{device.memory_mib}MiB"
        model = device.model + ("" if device.healthy else " (not well)")
        share_text = f"{units.whole_units(taken):g}"
        yield [each.name, str(device.index), model or "-", share_text, memory, ", ".join(users) or "-"]


def describe_nodes(context: CommandContext, names: Sequence[str], output_format: str = "wide") -> int:
    if output_format in ("json", "yaml"):
        return list_nodes(context, names, output_format, headers=True)

    async def work(driver: StoreDriver) -> tuple[list[NodeUsage], dict[str, str]]:
        return await read_node_usage(driver, names), await projects_by_namespace(driver)

    found, known = context.run(work)
    blocks = ["\n".join(description_lines(each, known, time.time())) for each in found]
    click.echo("\n\n".join(blocks))
    return 0


def description_lines(each: NodeUsage, known: dict[str, str], now: float) -> Iterator[str]:
    for title, text in zip(TITLES, node_row(each), strict=True):
        yield f"{title}: {output.printable(text)}"
    yield f"AGE: {output.age(now - (each.node.metadata.created or now))}"
    marks = ", ".join(f"{key}={value}" for key, value in sorted(each.node.metadata.labels.items()))
    yield f"LABELS: {output.printable(marks) or '-'}"
    if each.node.status.conditions:
        yield "\nCONDITIONS:"
        conditions = [[one.type, one.status, one.reason, one.message] for one in each.node.status.conditions]
        yield output.table(("TYPE", "STATUS", "REASON", "MESSAGE"), conditions)
    if each.devices:
        yield "\nGPUs:"
        rows = [cells[1:] for cells in device_rows(each, known)]
        yield output.table(DEVICE_TITLES, rows)


_ENTRY = CommandSpec("aliquot.cli.runai.nodes", "top_node", "How full the nodes are.")
top = LazyGroup("top", {"node": _ENTRY, "nodes": _ENTRY._replace(hidden=True)}, help="Show how full things are.")
