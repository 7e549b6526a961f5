"""`status`: the address of the server, whether it is ready, and what it holds."""

from __future__ import annotations

import time
from typing import Any

import click

from aliquot import units
from aliquot.api import KINDS, Node, Pod
from aliquot.cli import output
from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.runai.nodes import node_usage
from aliquot.client.remote import RemoteServer
from aliquot.errors import Denied, NotFound, PlatformError, Unavailable
from aliquot.folder import RunningServer, running_server
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store


@click.command(cls=GlobalOptionsCommand, visible_globals=("--data-dir",))
@click.option("--json", "output_format", flag_value="json", help="Print JSON.")
@click.option("--yaml", "output_format", flag_value="yaml", help="Print YAML.")
def status(output_format: str | None) -> int:
    """Show the state of the server. The exit status is 1 when no server runs or it is not ready."""
    context = command_context()
    report = collect_report(context)
    click.echo(output.dump(report, output_format) if output_format else "\n".join(report_lines(report, time.time())))
    return 0 if report["ready"] else 1


def collect_report(context: CommandContext) -> dict[str, Any]:
    """Facts about the server; raises when no server can be reached."""
    connection = context.connection
    local = running_server(context.data_dir)
    ours = local if local and local.alive and local.url.rstrip("/") == connection.url.rstrip("/") else None
    return {"url": connection.url, **_local_facts(ours), **context.run(_remote_facts)}


def _local_facts(server: RunningServer | None) -> dict[str, Any]:
    """Facts from server.json, which only the machine of the server has."""
    if server is None:
        return {}
    facts = {"version": server.version, "pid": server.pid, "flavour": server.flavour, "started": server.started}
    return {name: value for name, value in facts.items() if value}


async def _remote_facts(driver: StoreDriver) -> dict[str, Any]:
    try:
        await driver.check()
    except Unavailable as exc:
        if not exc.sent:
            raise  # no server answers
        return {"ready": False, "reason": exc.message, "counts": {}}
    counts: dict[str, int] = {}
    for kind in KINDS:
        try:
            counts[kind.plural] = await driver.count(kind)
        except (Denied, NotFound):
            continue  # not permitted, or not served here
        except PlatformError as exc:
            return {"ready": False, "reason": exc.message, "counts": counts}
    return {"ready": True, "counts": counts, **await _nodes_and_isolation(driver)}


async def _nodes_and_isolation(driver: StoreDriver) -> dict[str, Any]:
    """The nodes and pods that the caller may see, and how jobs are isolated from each other."""
    nodes: list[dict[str, Any]] = []
    try:
        store = Store(driver)
        pods = (await store.list(Pod)).items
        for node in (await store.list(Node)).items:
            usage = node_usage(node, pods)
            allocated = units.whole_units(sum(share.milli for share in usage.shares))
            facts = {"name": usage.name, "gpus": len(usage.devices), "allocated": allocated}
            nodes.append({**facts, "pods": len(usage.pods), "simulated": usage.simulated})
        server = (await driver.whoami()).get("server", {}) if isinstance(driver, RemoteServer) else {}
    except PlatformError:
        return {"nodes": nodes}
    isolation = server.get("isolation")
    return {"nodes": nodes, **({"isolation": isolation} if isolation else {})}


def report_lines(report: dict[str, Any], now: float) -> list[str]:
    rows = [("Server", report["url"])]
    rows += [(title, str(report[name])) for name, title in _TITLES.items() if name in report]
    if "started" in report:
        rows.append(("Up since", f"{output.local_time(report['started'])} ({output.age_of(report['started'], now)})"))
    rows.append(("Ready", "yes" if report["ready"] else f"no: {report['reason']}"))
    # The number of events tells the user nothing.
    counts = {plural: count for plural, count in report["counts"].items() if count and plural != "events"}
    contents = [f"{count} {_counted(plural, count)}" for plural, count in counts.items()]
    rows.append(("Holds", ", ".join(contents) or "nothing yet"))
    rows += [("Node", _node_line(node)) for node in report.get("nodes", ())]
    if "isolation" in report:
        rows.append(("Isolation", report["isolation"]))
    return [f"{name + ':':<10} {output.printable(text)}" for name, text in rows]


def _node_line(node: dict[str, Any]) -> str:
    pods = "1 pod" if node["pods"] == 1 else f"{node['pods']} pods"
    text = f"{node['name']}, {node['allocated']:g} of {node['gpus']} GPUs, {pods}"
    return f"{text} (simulated)" if node["simulated"] else text


_TITLES = {"version": "Version", "pid": "Process", "flavour": "Store"}


def _counted(plural: str, count: int) -> str:
    return KINDS.named(plural).singular if count == 1 else plural
