"""`get NAME` and `describe job NAME`: one job with its mounts, pods, pending reasons, interruptions and events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import click

from aliquot import units
from aliquot.api import Json, Node, Pod, Template, Workload, encode, to_json
from aliquot.api.pod import last_checkpoint_time
from aliquot.api.workload import Interruption
from aliquot.cli import output
from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.describe import count_suffix, events_of, sort_events
from aliquot.cli.describe import describe as describe_object
from aliquot.cli.get import get as get_objects
from aliquot.cli.runai import job_columns
from aliquot.cli.runai.job_lookup import (
    JOB_KIND_NAMES,
    get_job,
    list_pods,
    names_kind,
    pods_of_job,
    resolve_project,
)
from aliquot.cli.runai.list_jobs import created_by_cli
from aliquot.cli.runai.nodes import describe_nodes
from aliquot.cli.runai.program import JobOrKindCommand, project_option
from aliquot.cli.shell_completion import complete_names
from aliquot.client import Server
from aliquot.errors import Denied, NotFound, PlatformError
from aliquot.labels import FILLED_BY, NOMINATION, SYSTEM_NAMESPACE
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.typed_store import Store

_FORMATS = click.Choice(["wide", "json", "yaml"])
# The `about` values of explanation lines that are shown for a pending job.
_PENDING_TOPICS = ("why", "promise", "place", "help")
_OWN_KINDS = (*JOB_KIND_NAMES, "node", "nodes", "template", "templates")


def _format_options(command: click.decorators.FC) -> click.decorators.FC:
    command = click.option("--json", "output_format", flag_value="json", help="The same as -o json.")(command)
    command = click.option("--yaml", "output_format", flag_value="yaml", help="The same as -o yaml.")(command)
    return click.option("-o", "--output", "output_format", type=_FORMATS, default="wide", help="Output format.")(
        command
    )


@click.command(
    "get", cls=JobOrKindCommand, kind_command=get_objects, is_for_kind=lambda arguments: names_kind(arguments[0])
)
@click.argument("name", metavar="NAME", shell_complete=complete_names("workload"))
@_format_options
@project_option
def get(name: str, output_format: str, project: str) -> int:
    """Show one job. `get KIND [NAME]...` lists objects of any kind."""
    return print_job(command_context(), name, project, output_format)


def _names_other_kind(arguments: Sequence[str]) -> bool:
    return names_kind(arguments[0]) and arguments[0].lower() not in _OWN_KINDS


@click.command("describe", cls=JobOrKindCommand, kind_command=describe_object, is_for_kind=_names_other_kind)
@click.argument("what", metavar="job|node|template|KIND")
@click.argument("names", nargs=-1, metavar="NAME", shell_complete=complete_names("workload"))
@_format_options
@project_option
def describe(what: str, names: tuple[str, ...], output_format: str, project: str) -> int:
    """Show everything about a job, a node, or any other object."""
    context, what = command_context(), what.lower()
    if what in ("node", "nodes"):
        return describe_nodes(context, names, output_format)
    if what not in _OWN_KINDS:
        raise click.UsageError(f"describe what? `runai describe job {what}` shows a job.")
    if len(names) != 1:
        raise click.UsageError(f"which {what}? Give one name.")
    if what in JOB_KIND_NAMES:
        return print_job(context, names[0], project, output_format)
    return print_template(context, names[0], project, output_format)


def print_job(context: CommandContext, name: str, project: str, output_format: str) -> int:
    async def read(driver: Server) -> tuple[Workload, list[Pod], list[Json], dict[str, str], list[str]]:
        scope = await resolve_project(context, driver, project)
        job = await get_job(driver, scope, name)
        if output_format in ("json", "yaml"):
            return job, [], [], {}, []
        pods = pods_of_job(job, await list_pods(driver, scope.namespace))
        reasons = await _pending_reasons(driver, job, pods)
        return job, pods, await _events(driver, job, pods), await _node_addresses(driver), reasons

    job, pods, events, addresses, reasons = context.run(read)
    if output_format in ("json", "yaml"):
        click.echo(output.dump(to_json(job), output_format))
    else:
        click.echo("\n".join(description_lines(job, pods, events, addresses, time.time(), reasons)))
    return 0


async def _pending_reasons(server: Server, workload: Workload, pods: Sequence[Pod]) -> list[str]:
    """Why the job is pending, as the scheduler explains it now; else the reasons that are stored in its status."""
    nominated = any(NOMINATION in pod.metadata.annotations for pod in pods)
    is_pending = job_columns.job_status(workload, pods) in ("Pending", "Terminating")
    if not is_pending or not (workload.status.refusals or nominated):
        return []
    try:
        explanation = await server.explain(workload.metadata.namespace, workload.metadata.name, what_if=True)
    except PlatformError:
        return job_columns.pending_reasons(workload)
    return [str(line["text"]) for line in explanation["lines"] if line["about"] in _PENDING_TOPICS]


async def _events(driver: StoreDriver, workload: Workload, pods: Sequence[Pod]) -> list[Json]:
    """The events of the job and of its pods, even of deleted ones; oldest first."""
    events: dict[str, Json] = {}
    for item in (workload, *pods):
        events |= {event["metadata"]["name"]: event for event in await events_of(driver, Document(to_json(item)))}
    return sort_events(events.values())


async def _node_addresses(driver: StoreDriver) -> dict[str, str]:
    try:
        nodes = (await Store(driver).list(Node)).items
    except Denied:
        return {}
    types = ("InternalIP", "ExternalIP", "Hostname")  # in the order of preference
    return {
        node.metadata.name: next((a.address for kind in types for a in node.status.addresses if a.type == kind), "")
        for node in nodes
    }


def description_lines(
    workload: Workload,
    pods: Sequence[Pod],
    events: Sequence[Json],
    addresses: dict[str, str],
    now: float,
    pending_reasons: Sequence[str] = (),
) -> Iterator[str]:
    status = job_columns.job_status(workload, pods)
    for title, text in properties(workload, pods, status, now):
        yield f"{title}: {output.printable(text)}".rstrip()
    mounts = list(mount_rows(workload))
    if mounts:
        yield "\nMounts:"
        yield output.table(("TYPE", "SOURCE", "PATH", "MODE"), mounts)
    yield "\nPods:"
    yield output.table(("POD", "STATUS", "TYPE", "AGE", "NODE"), [_pod_row(workload, p, addresses, now) for p in pods])
    if pending_reasons:
        yield "\nWhy it waits:"
        yield from (f"  {output.printable(text)}" for text in pending_reasons)
    interruptions = [_interruption_row(each, now) for each in workload.status.interruptions]
    if interruptions:
        yield "\nInterruptions:"
        yield output.table(("AGE", "REASON", "FOR", "LOST", "MESSAGE"), interruptions)
    yield "\nEvents:"
    yield output.table(("SOURCE", "TYPE", "AGE", "MESSAGE"), [_event_row(event, now) for event in events])


def properties(workload: Workload, pods: Sequence[Pod], job_status: str, now: float) -> Iterator[tuple[str, str]]:
    spec, status = workload.spec, workload.status
    counts = status.pods
    yield "NAME", workload.metadata.name
    yield "NAMESPACE", workload.metadata.namespace
    yield "TYPE", job_columns.TYPE_LABELS[spec.type]
    yield "STATUS", job_status
    if status.message:
        yield "MESSAGE", status.message
    yield "TRAINING DURATION", output.age(job_columns.run_seconds(workload, now))
    if status.restarts:
        yield "RESTARTS", str(status.restarts)
    checkpoints = [moment for pod in pods if (moment := last_checkpoint_time(pod)) is not None]
    if checkpoints:
        yield "LAST CHECKPOINT", f"{output.age(max(0.0, now - min(checkpoints)))} ago"
    if status.queued_at is not None:
        yield "WAIT TIME", output.age(max(0.0, now - status.queued_at))
    yield "GPUS", _gpus_per_pod(workload)
    yield "TOTAL REQUESTED GPUS", job_columns.short_gpus(workload)
    yield "ALLOCATED GPUS", f"{units.whole_units(status.allocated.gpu or 0):g}"
    yield "RUNNING PODS", str(job_columns.running_pods(pods))
    yield "PENDING PODS", str(job_columns.pending_pods(pods))
    yield "PARALLELISM", str(spec.parallelism or 1)
    yield "COMPLETIONS", str(spec.completions or 1)
    yield "SUCCEEDED PODS", str(counts.succeeded)
    yield "FAILED PODS", str(counts.failed)
    yield "IS DISTRIBUTED WORKLOAD", "true" if spec.distributed else "false"
    yield "CREATED BY CLI", created_by_cli(workload)
    yield "SERVICE URL(S)", job_columns.urls(workload)
    if filled_by := workload.metadata.annotations.get(FILLED_BY):
        yield "FILLED IN BY", filled_by


def _gpus_per_pod(workload: Workload) -> str:
    compute = workload.spec.compute
    if compute.gpu_memory:
        return units.quantity_text(compute.gpu_memory)
    return compute.mig_profile or f"{units.whole_units(job_columns.gpu_per_pod(compute)):g}"


def mount_rows(workload: Workload) -> Iterator[list[str]]:
    """The mounts of a job: type, source, path in the container and mode."""
    storage = workload.spec.storage
    for host in storage.host_path:
        yield ["host path", host.path, host.mount_path, _mode(host.read_only)]
    for nfs in storage.nfs:
        yield ["nfs", f"{nfs.server}:{nfs.path}", nfs.mount_path, _mode(nfs.read_only)]
    for claim in storage.pvc:
        name = claim.claim_name or f"new, {units.quantity_text(claim.size or 0)}"
        yield ["claim", name, claim.path, _mode(claim.read_only)]
    for git in storage.git:
        yield ["git", git.repository, git.path or "/code", _mode(None)]
    for bucket in storage.s3:
        yield ["s3", bucket.bucket, bucket.path, _mode(None)]
    for kind, entries in (("config map", storage.config_map), ("secret", storage.secret)):
        for files in entries:
            yield [kind, files.source, files.path, _mode(True)]
    for volume in storage.data_volume:
        yield ["data volume", volume.volume, volume.path, _mode(None)]


def _mode(read_only: bool | None) -> str:
    return "ro" if read_only else "rw"


def _pod_row(workload: Workload, pod: Pod, addresses: dict[str, str], now: float) -> list[str]:
    node = pod.spec.node_name
    address = addresses.get(node) or pod.status.host_ip
    return [
        pod.metadata.name,
        job_columns.pod_status(pod).upper(),
        job_columns.TYPE_LABELS[workload.spec.type],
        output.age(now - (pod.metadata.created or now)),
        f"{node}/{address}" if node and address else node,
    ]


def _interruption_row(interruption: Interruption, now: float) -> list[str]:
    return [
        output.age(max(0.0, now - interruption.at)),
        interruption.reason or output.EMPTY,
        output.printable(interruption.by) or output.EMPTY,
        output.age(interruption.lost_seconds),
        output.printable(interruption.message) + (" (it ended with that)" if interruption.final else ""),
    ]


def _event_row(event: Json, now: float) -> list[str]:
    about = event.get("involvedObject") or {}
    at = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    source = f"{str(about.get('kind') or '').lower()}/{about.get('name') or ''}"
    message = " ".join(filter(None, (f"[{event.get('reason')}]" if event.get("reason") else "", event.get("message"))))
    return [
        output.printable(source),
        str(event.get("type") or "-"),
        output.age_of(at, now),
        output.printable(message) + count_suffix(event),
    ]


def print_template(context: CommandContext, name: str, project: str, output_format: str = "wide") -> int:
    template = context.run(lambda driver: _get_template(context, driver, name, project))
    if output_format in ("json", "yaml"):
        click.echo(output.dump(to_json(template), output_format))
        return 0
    click.echo(f"Name: {template.metadata.name}")
    click.echo(
        f"Description: {output.printable(template.spec.description)}{' (default)' if template.spec.default else ''}"
    )
    values = output.as_yaml(encode(template.spec.values) or {})
    click.echo("Values:\n" + "\n".join("  " + line for line in values.splitlines()))
    return 0


async def _get_template(context: CommandContext, driver: StoreDriver, name: str, project: str) -> Template:
    namespaces = [SYSTEM_NAMESPACE]
    if project or context.settings.project:
        namespaces.insert(0, (await resolve_project(context, driver, project)).namespace)
    for namespace in namespaces:
        try:
            return await Store(driver).get(Template, name, namespace)
        except NotFound:
            continue
    raise NotFound(f"template {name!r} does not exist", hint="`runai list templates` shows those there are")
