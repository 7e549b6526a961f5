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
from aliquot.cli.describe import describe as describe_object
from aliquot.cli.describe import events_of, in_order, times
from aliquot.cli.get import get as get_objects
from aliquot.cli.runai import job_columns
from aliquot.cli.runai.list_jobs import created_by_cli
from aliquot.cli.runai.nodes import describe_nodes
from aliquot.cli.runai.program import JobOrKind, project_option
from aliquot.cli.runai.scope import JOB_WORDS, Scope, is_kind, job, pods_in, pods_of, scope_of
from aliquot.cli.session import Session, session
from aliquot.cli.targets import complete_names
from aliquot.client import Server
from aliquot.errors import Denied, NotFound, PlatformError
from aliquot.labels import FILLED_BY, NOMINATION, SYSTEM_NAMESPACE
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.typed_store import Store

_FORMS = click.Choice(["wide", "json", "yaml"])
_ABOUT_WAITING = ("why", "promise", "place", "help")
_OWN_KINDS = (*JOB_WORDS, "node", "nodes", "template", "templates")


def _form_options(command: click.decorators.FC) -> click.decorators.FC:
    command = click.option("--json", "form", flag_value="json", help="The same as -o json.")(command)
    command = click.option("--yaml", "form", flag_value="yaml", help="The same as -o yaml.")(command)
    return click.option("-o", "--output", "form", type=_FORMS, default="wide", help="How to print it.")(command)


@click.command("get", cls=JobOrKind, general=get_objects, is_general=lambda words: is_kind(words[0]))
@click.argument("name", metavar="NAME", shell_complete=complete_names("workload"))
@_form_options
@project_option
def get(name: str, form: str, project: str) -> int:
    """Show one job. `get KIND [NAME]...` lists objects of any kind."""
    return show_job(session(), name, project, form)


def _is_general(words: Sequence[str]) -> bool:
    return is_kind(words[0]) and words[0].lower() not in _OWN_KINDS


@click.command("describe", cls=JobOrKind, general=describe_object, is_general=_is_general)
@click.argument("what", metavar="job|node|template|KIND")
@click.argument("names", nargs=-1, metavar="NAME", shell_complete=complete_names("workload"))
@_form_options
@project_option
def describe(what: str, names: tuple[str, ...], form: str, project: str) -> int:
    """Show everything about a job, a node, or any other object."""
    here, what = session(), what.lower()
    if what in ("node", "nodes"):
        return describe_nodes(here, names, form)
    if what not in _OWN_KINDS:
        raise click.UsageError(f"describe what? `runai describe job {what}` shows a job.")
    if len(names) != 1:
        raise click.UsageError(f"which {what}? Give one name.")
    if what in JOB_WORDS:
        return show_job(here, names[0], project, form)
    return show_template(here, names[0], project, form)


def show_job(here: Session, name: str, asked: str, form: str) -> int:
    async def work(driver: Server) -> tuple[Workload, list[Pod], list[Json], dict[str, str], list[str]]:
        scope = await scope_of(here, driver, asked)
        found = await job(driver, scope, name)
        if form in ("json", "yaml"):
            return found, [], [], {}, []
        pods = pods_of(found, await pods_in(driver, scope.namespace))
        why = await _why(driver, found, pods)
        return found, pods, await _events(driver, found, pods), await _addresses(driver), why

    found, pods, events, addresses, why = here.run(work)
    if form in ("json", "yaml"):
        click.echo(output.shown_as(to_json(found), form))
    else:
        click.echo("\n".join(described(found, pods, events, addresses, time.time(), why)))
    return 0


async def _why(server: Server, workload: Workload, pods: Sequence[Pod]) -> list[str]:
    """Why it waits and what for, as the scheduler says it now; where nobody can be asked, what it wrote down last."""
    promised = any(NOMINATION in pod.metadata.annotations for pod in pods)
    waits = job_columns.status_word(workload, pods) in ("Pending", "Terminating")
    if not waits or not (workload.status.refusals or promised):
        return []
    try:
        told = await server.explain(workload.metadata.namespace, workload.metadata.name, what_if=True)
    except PlatformError:
        return job_columns.why_waiting(workload)
    return [str(line["text"]) for line in told["lines"] if line["about"] in _ABOUT_WAITING]


async def _events(driver: StoreDriver, workload: Workload, pods: Sequence[Pod]) -> list[Json]:
    """What happened to the job and to its pods, also those that are gone, oldest first."""
    found: dict[str, Json] = {}
    for each in (workload, *pods):
        found |= {event["metadata"]["name"]: event for event in await events_of(driver, Document(to_json(each)))}
    return in_order(found.values())


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


def described(
    workload: Workload,
    pods: Sequence[Pod],
    events: Sequence[Json],
    addresses: dict[str, str],
    now: float,
    why: Sequence[str] = (),
) -> Iterator[str]:
    word = job_columns.status_word(workload, pods)
    for title, text in properties(workload, pods, word, now):
        yield f"{title}: {output.clean(text)}".rstrip()
    mounts = list(mount_rows(workload))
    if mounts:
        yield "\nMounts:"
        yield output.table(("TYPE", "SOURCE", "PATH", "MODE"), mounts)
    yield "\nPods:"
    yield output.table(("POD", "STATUS", "TYPE", "AGE", "NODE"), [_pod_row(workload, p, addresses, now) for p in pods])
    if why:
        yield "\nWhy it waits:"
        yield from (f"  {output.clean(text)}" for text in why)
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
    yield "TYPE", job_columns.TYPE_WORDS[spec.type]
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
    return compute.mig_profile or f"{units.whole_units(job_columns.gpu_of(compute)):g}"


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
        job_columns.pod_word(pod).upper(),
        job_columns.TYPE_WORDS[workload.spec.type],
        output.age(now - (pod.metadata.created or now)),
        f"{node}/{address}" if node and address else node,
    ]


def _stop_row(stop: Interruption, now: float) -> list[str]:
    return [
        output.age(max(0.0, now - stop.at)),
        stop.reason or output.EMPTY,
        output.clean(stop.by) or output.EMPTY,
        output.age(stop.lost_seconds),
        output.clean(stop.message) + (" (it ended with that)" if stop.final else ""),
    ]


def _event_row(event: Json, now: float) -> list[str]:
    about = event.get("involvedObject") or {}
    at = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    source = f"{str(about.get('kind') or '').lower()}/{about.get('name') or ''}"
    message = " ".join(filter(None, (f"[{event.get('reason')}]" if event.get("reason") else "", event.get("message"))))
    return [
        output.clean(source),
        str(event.get("type") or "-"),
        output.age_of(at, now),
        output.clean(message) + times(event),
    ]


# --- templates


def show_template(here: Session, name: str, asked: str, form: str = "wide") -> int:
    found = here.run(lambda driver: _template(here, driver, name, asked))
    if form in ("json", "yaml"):
        click.echo(output.shown_as(to_json(found), form))
        return 0
    click.echo(f"Name: {found.metadata.name}")
    click.echo(f"Description: {output.clean(found.spec.description)}{' (default)' if found.spec.default else ''}")
    values = output.as_yaml(encode(found.spec.values) or {})
    click.echo("Values:\n" + "\n".join("  " + line for line in values.splitlines()))
    return 0


async def _template(here: Session, driver: StoreDriver, name: str, asked: str) -> Template:
    own: list[Scope] = [await scope_of(here, driver, asked)] if asked or here.settings.project else []
    for namespace in (*(scope.namespace for scope in own), SYSTEM_NAMESPACE):
        try:
            return await Store(driver).get(Template, name, namespace)
        except NotFound:
            continue
    raise NotFound(f"template {name!r} does not exist", hint="`runai list templates` shows those there are")
