"""`get NAME` and `describe job NAME`: one job, its mounts, its pods, why it waits, and what happened to it."""

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
    ProjectScope,
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

_FORMS = click.Choice(["wide", "json", "yaml"])
_ABOUT_WAITING = ("why", "promise", "place", "help")
_OWN_KINDS = (*JOB_KIND_NAMES, "node", "nodes", "template", "templates")


def _form_options(command: click.decorators.FC) -> click.decorators.FC:
    command = click.option("--json", "output_format", flag_value="json", help="The same as -o json.")(command)
    command = click.option("--yaml", "output_format", flag_value="yaml", help="The same as -o yaml.")(command)
    return click.option("-o", "--output", "output_format", type=_FORMS, default="wide", help="How to print it.")(
        command
    )


@click.command(
    "get", cls=JobOrKindCommand, kind_command=get_objects, is_for_kind=lambda arguments: names_kind(arguments[0])
)
@click.argument("name", metavar="NAME", shell_complete=complete_names("workload"))
@_form_options
@project_option
def get(name: str, output_format: str, project: str) -> int:
    """Show one job. `get KIND [NAME]...` lists objects of any kind."""
    return print_job(command_context(), name, project, output_format)


def _names_other_kind(arguments: Sequence[str]) -> bool:
    return names_kind(arguments[0]) and arguments[0].lower() not in _OWN_KINDS


@click.command("describe", cls=JobOrKindCommand, kind_command=describe_object, is_for_kind=_names_other_kind)
@click.argument("what", metavar="job|node|template|KIND")
@click.argument("names", nargs=-1, metavar="NAME", shell_complete=complete_names("workload"))
@_form_options
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
    async def work(driver: Server) -> tuple[Workload, list[Pod], list[Json], dict[str, str], list[str]]:
        scope = await resolve_project(context, driver, project)
        found = await get_job(driver, scope, name)
        if output_format in ("json", "yaml"):
            return found, [], [], {}, []
        pods = pods_of_job(found, await list_pods(driver, scope.namespace))
        why = await _why(driver, found, pods)
        return found, pods, await _events(driver, found, pods), await _addresses(driver), why

    found, pods, events, addresses, why = context.run(work)
    if output_format in ("json", "yaml"):
        click.echo(output.dump(to_json(found), output_format))
    else:
        click.echo("\n".join(description_lines(found, pods, events, addresses, time.time(), why)))
    return 0


async def _why(server: Server, workload: Workload, pods: Sequence[Pod]) -> list[str]:
    """Why it waits and what for, as the scheduler says it now; where nobody can be asked, what it wrote down last."""
    promised = any(NOMINATION in pod.metadata.annotations for pod in pods)
    waits = job_columns.job_status(workload, pods) in ("Pending", "Terminating")
    if not waits or not (workload.status.refusals or promised):
        return []
    try:
        explanation = await server.explain(workload.metadata.namespace, workload.metadata.name, what_if=True)
    except PlatformError:
        return job_columns.pending_reasons(workload)
    return [str(line["text"]) for line in explanation["lines"] if line["about"] in _ABOUT_WAITING]


async def _events(driver: StoreDriver, workload: Workload, pods: Sequence[Pod]) -> list[Json]:
    """What happened to the job and to its pods, also those that are gone, oldest first."""
    found: dict[str, Json] = {}
    for each in (workload, *pods):
        found |= {event["metadata"]["name"]: event for event in await events_of(driver, Document(to_json(each)))}
    return sort_events(found.values())


async def _addresses(driver: StoreDriver) -> dict[str, str]:
    try:
        nodes = (await Store(driver).list(Node)).items
    except Denied:
        return {}
    inside = ("InternalIP", "ExternalIP", "Hostname")
    return {
        node.metadata.name: next((a.address for kind in inside for a in node.status.addresses if a.type == kind), "")
        for node in nodes
    }


def description_lines(
    workload: Workload,
    pods: Sequence[Pod],
    events: Sequence[Json],
    addresses: dict[str, str],
    now: float,
    why: Sequence[str] = (),
) -> Iterator[str]:
    word = job_columns.job_status(workload, pods)
    for title, text in properties(workload, pods, word, now):
        yield f"{title}: {output.printable(text)}".rstrip()
    mounts = list(mount_rows(workload))
    if mounts:
        yield "\nMounts:"
        yield output.table(("TYPE", "SOURCE", "PATH", "MODE"), mounts)
    yield "\nPods:"
    yield output.table(("POD", "STATUS", "TYPE", "AGE", "NODE"), [_pod_row(workload, p, addresses, now) for p in pods])
    if why:
        yield "\nWhy it waits:"
        yield from (f"  {output.printable(text)}" for text in why)
    stops = [_stop_row(stop, now) for stop in workload.status.interruptions]
    if stops:
        yield "\nInterruptions:"
        yield output.table(("AGE", "REASON", "FOR", "LOST", "MESSAGE"), stops)
    yield "\nEvents:"
    yield output.table(("SOURCE", "TYPE", "AGE", "MESSAGE"), [_event_row(event, now) for event in events])


def properties(workload: Workload, pods: Sequence[Pod], word: str, now: float) -> Iterator[tuple[str, str]]:
    spec, status = workload.spec, workload.status
    counts = status.pods
    yield "NAME", workload.metadata.name
    yield "NAMESPACE", workload.metadata.namespace
    yield "TYPE", job_columns.TYPE_LABELS[spec.type]
    yield "STATUS", word
    if status.message:
        yield "MESSAGE", status.message
    yield "TRAINING DURATION", output.age(job_columns.run_seconds(workload, now))
    if status.restarts:
        yield "RESTARTS", str(status.restarts)
    saved = [moment for pod in pods if (moment := last_checkpoint_time(pod)) is not None]
    if saved:
        yield "LAST CHECKPOINT", f"{output.age(max(0.0, now - min(saved)))} ago"
    if status.queued_at is not None:
        yield "WAIT TIME", output.age(max(0.0, now - status.queued_at))
    yield "GPUS", _per_pod(workload)
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


def _per_pod(workload: Workload) -> str:
    compute = workload.spec.compute
    if compute.gpu_memory:
        return units.quantity_text(compute.gpu_memory)
    return compute.mig_profile or f"{units.whole_units(job_columns.gpu_per_pod(compute)):g}"


def mount_rows(workload: Workload) -> Iterator[list[str]]:
    """Volumes and claims with the path in the container."""
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


def _stop_row(stop: Interruption, now: float) -> list[str]:
    return [
        output.age(max(0.0, now - stop.at)),
        stop.reason or output.EMPTY,
        output.printable(stop.by) or output.EMPTY,
        output.age(stop.lost_seconds),
        output.printable(stop.message) + (" (it ended with that)" if stop.final else ""),
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


# --- templates


def print_template(context: CommandContext, name: str, project: str, output_format: str = "wide") -> int:
    found = context.run(lambda driver: _template(context, driver, name, project))
    if output_format in ("json", "yaml"):
        click.echo(output.dump(to_json(found), output_format))
        return 0
    click.echo(f"Name: {found.metadata.name}")
    click.echo(f"Description: {output.printable(found.spec.description)}{' (default)' if found.spec.default else ''}")
    values = output.as_yaml(encode(found.spec.values) or {})
    click.echo("Values:\n" + "\n".join("  " + line for line in values.splitlines()))
    return 0


async def _template(context: CommandContext, driver: StoreDriver, name: str, project: str) -> Template:
    own: list[ProjectScope] = (
        [await resolve_project(context, driver, project)] if project or context.settings.project else []
    )
    for namespace in (*(scope.namespace for scope in own), SYSTEM_NAMESPACE):
        try:
            return await Store(driver).get(Template, name, namespace)
        except NotFound:
            continue
    raise NotFound(f"template {name!r} does not exist", hint="`runai list templates` shows those there are")
