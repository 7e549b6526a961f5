"""`logs`, `bash` and `exec`: looking inside a job."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import click

from aliquot import units
from aliquot.api import Pod, Workload
from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.runai import job_columns, terminal
from aliquot.cli.runai.job_lookup import get_job, list_pods, pods_of_job, resolve_project, select_pod
from aliquot.cli.runai.program import TRAILING_ARGUMENTS, RunaiCommand, project_option
from aliquot.cli.shell_completion import complete_names
from aliquot.client import Server
from aliquot.client.log_following import Place, Times, place_in
from aliquot.errors import Conflict, Invalid, NotFound, Unavailable
from aliquot.store.typed_store import Store
from aliquot.streams import LogOptions

_POLL_S = 0.3
_LONGEST_PAUSE_S = 3.0  # between two looks at a log that says nothing new
_PATIENCE_S = 60.0  # for a server that restarts while a log is followed
NAME = click.argument("name", metavar="NAME", shell_complete=complete_names("workload"))
POD = click.option("--pod", default="", metavar="NAME", help="Which pod of the job; the first.")


@click.command("logs", cls=RunaiCommand)
@NAME
@click.option("-f", "--follow", is_flag=True, help="Go on as long as the job runs.")
@POD
@click.option("-i", "--instance", default="", hidden=True, help="The same as --pod.")
@click.option("--since", metavar="TIME", help="Only what is newer than this, such as 5m.")
@click.option("--since-time", metavar="TIME", help="Only what is newer than this, such as 2026-01-31T12:00:00Z.")
@click.option("-t", "--tail", metavar="N", help="Only the last lines; -1 for all.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@click.option("--previous", is_flag=True, help="Of the container before the last restart.")
@click.option("--limit-bytes", metavar="N", help="At most so many bytes.")
@click.option("--wait-timeout", metavar="TIME", help="Wait so long for the job to start.")
@project_option
def logs(
    name: str,
    follow: bool,
    pod: str,
    instance: str,
    since: str | None,
    since_time: str | None,
    tail: str | None,
    timestamps: bool,
    previous: bool,
    limit_bytes: str | None,
    wait_timeout: str | None,
    project: str,
) -> int:
    """Print the log of a job."""
    options = LogOptions(
        follow=follow,
        tail_lines=_count("tail", tail),
        since=since_moment(since, since_time, time.time()),
        timestamps=timestamps,
        previous=previous,
        limit_bytes=_count("limit-bytes", limit_bytes),
    )
    patience = seconds("wait-timeout", wait_timeout) if wait_timeout else None
    context = command_context()
    context.run(lambda server: _logs(context, server, name, pod or instance, project, options, patience))
    return 0


def _count(flag: str, text: str | None) -> int | None:
    if text is None or text == "-1":
        return None
    if not (text.isascii() and text.isdigit()):
        raise Invalid(f"--{flag}: must be a whole number, not {text!r}")
    return int(text)


def seconds(flag: str, text: str) -> int:
    try:
        return units.duration(text)
    except ValueError as exc:
        raise Invalid(f"--{flag}: {exc}") from None


def since_moment(since: str | None, since_time: str | None, now: float) -> float | None:
    if since and since_time:
        raise Invalid("--since and --since-time: give one of them")
    if since:
        return now - seconds("since", since)
    try:
        return units.timestamp(since_time) if since_time else None
    except ValueError as exc:
        raise Invalid(f"--since-time: {exc}") from None


async def _logs(
    context: CommandContext,
    server: Server,
    name: str,
    asked: str,
    project: str,
    options: LogOptions,
    patience: int | None,
) -> None:
    pod = await _pod_with_log(context, server, name, asked, project, wait=options.follow, patience=patience)
    options = dataclasses.replace(options, pod_uid=pod.metadata.uid)
    if options.follow:
        await follow_log(server, pod, options, _write, context.note)
        return
    async with server.logs(pod.metadata.namespace, pod.metadata.name, options) as log:
        async for piece in log.chunks:
            _write(piece)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _pod_with_log(
    context: CommandContext, server: Server, name: str, asked: str, project: str, *, wait: bool, patience: int | None
) -> Pod:
    """The pod whose log is meant; waits for its start where that was asked for."""
    scope = await resolve_project(context, server, project)
    until = None if patience is None else time.monotonic() + patience
    notified = False
    while True:
        workload = await get_job(server, scope, name)
        pods = pods_of_job(workload, await list_pods(server, scope.namespace))
        word = job_columns.job_status(workload, pods)
        pod = _first_started(workload, pods, asked)
        may_start = word in ("Pending", "ContainerCreating", "PodInitializing") or word.startswith("Init:")
        waits = (wait or until is not None) and may_start and (until is None or time.monotonic() < until)
        if pod is not None or not waits:
            return pod or _none_started(workload, pods, asked, word)
        if not notified:
            notified = True
            context.note(f"Waiting for job {name} to start; it is {word}.")
        await asyncio.sleep(_POLL_S)


def _first_started(workload: Workload, pods: Sequence[Pod], asked: str) -> Pod | None:
    try:
        pod = select_pod(workload, pods, asked)
    except NotFound:
        return None
    return pod if has_started(pod) else None


def has_started(pod: Pod) -> bool:
    states = [each for status in pod.status.container_statuses for each in (status.state, status.last_state)]
    return pod.status.phase in ("Running", "Succeeded", "Failed") or any(s.running or s.terminated for s in states)


def _none_started(workload: Workload, pods: Sequence[Pod], asked: str, word: str) -> Pod:
    if asked:
        select_pod(workload, pods, asked)
    raise Conflict(f"job {workload.metadata.name!r} has no log: {not_running(workload, pods, word)}")


def not_running(workload: Workload, pods: Sequence[Pod], word: str) -> str:
    """`it is Pending: needs 4 GPUs, no node has more than 2 free`."""
    waiting = [
        text
        for pod in pods
        for status in pod.status.container_statuses
        if status.state.waiting and (text := status.state.waiting.message)
    ]
    why = [*job_columns.pending_reasons(workload), *waiting, *filter(None, [workload.status.message])]
    return f"it is {word}" + (f": {why[0]}" if why else "")


async def follow_log(
    server: Server, pod: Pod, options: LogOptions, write: Callable[[bytes], None], note: Callable[[str], None]
) -> None:
    """Until the log ends. A connection that breaks is opened again, and nothing is lost or shown twice."""
    place: Place | Times | None = None
    asked = dataclasses.replace(options, line_times=options.limit_bytes is None)
    starts, pause = _starts(pod), _POLL_S
    broken_since: float | None = None

    async def show(asked: LogOptions) -> None:
        nonlocal place, pause, broken_since
        async with server.logs(pod.metadata.namespace, pod.metadata.name, asked) as log:
            place = place or place_in(log, timestamps=options.timestamps)
            place.begin(log.offset)
            async for piece in log.chunks:
                broken_since = None
                if shown := place.feed(piece):
                    pause = _POLL_S
                    write(shown)

    while True:
        try:
            if place is not None:
                # What a job printed while nobody served it comes with a last look, when it has ended.
                now = await _same(server, pod)
                follow = _goes_on(now)
                await asyncio.sleep(pause if follow else 0)
                asked, pause = place.again(options, follow=follow), min(2 * pause, _LONGEST_PAUSE_S)
                if isinstance(place, Times) and _starts(now) > starts:
                    with suppress(Conflict):  # nothing of the last start is kept
                        await show(dataclasses.replace(asked, follow=False, previous=True))
                starts = _starts(now)
            await show(asked)
            # A server that stops in good order ends its streams too, while the job goes on.
            if not asked.follow or place is None or not place.known or options.limit_bytes is not None:
                return
        except (Unavailable, Conflict) as exc:
            # Without a place there is nothing to go on from. With one, a conflict is an agent that still starts.
            if place is None or not place.known:
                raise
            if broken_since is None:
                broken_since = time.monotonic()
                note(f"connection lost ({exc.message}); trying again")
            elif time.monotonic() - broken_since > _PATIENCE_S:
                raise
            await asyncio.sleep(_POLL_S)
        except NotFound:
            if place is None or not place.known:
                raise
            return  # it went while nobody could look


async def _same(server: Server, pod: Pod) -> Pod:
    now = await Store(server).get(Pod, pod.metadata.name, pod.metadata.namespace)
    if now.metadata.uid != pod.metadata.uid:
        raise NotFound("another attempt has its name")
    return now


def _goes_on(pod: Pod) -> bool:
    # Between two starts of its container nothing runs in it, and yet it goes on.
    return pod.status.phase == "Running" and pod.metadata.deleted is None


def _starts(pod: Pod) -> int:
    return sum(status.restart_count for status in pod.status.container_statuses)


def is_running(pod: Pod) -> bool:
    if pod.status.phase != "Running" or pod.metadata.deleted is not None:
        return False
    statuses = pod.status.container_statuses
    return not statuses or any(status.state.running for status in statuses)


class ExecVerb(RunaiCommand):
    max_positionals = 1  # the job's name; what follows is the command, with all its flags


@click.command("exec", cls=ExecVerb, epilog="Flags of the command itself are its own: `runai exec NAME ls -l`.")
@NAME
@click.option("-i", "--stdin", is_flag=True, help="Pass on standard input.")
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal.")
@POD
@project_option
@click.pass_context
def exec_(ctx: click.Context, name: str, stdin: bool, tty: bool, pod: str, project: str) -> int:
    """Run a command in a job: `exec NAME COMMAND [ARG]...`."""
    command = ctx.meta.get(TRAILING_ARGUMENTS)
    if not command:
        raise click.UsageError("which command? `runai exec NAME COMMAND`.")
    return _exec(name, command, pod, project, tty=tty and terminal.is_terminal(), stdin=stdin or tty)


@click.command("bash", cls=RunaiCommand)
@NAME
@POD
@project_option
def bash(name: str, pod: str, project: str) -> int:
    """Open a shell in a job; its exit status is ours."""
    return _exec(name, ["bash"], pod, project, tty=terminal.is_terminal(), stdin=True)


def _exec(name: str, command: Sequence[str], asked: str, project: str, *, tty: bool, stdin: bool) -> int:
    context = command_context()

    async def work(server: Server) -> int:
        scope = await resolve_project(context, server, project)
        workload = await get_job(server, scope, name)
        pods = pods_of_job(workload, await list_pods(server, scope.namespace))
        pod = select_pod(workload, pods, asked) if asked else next(filter(is_running, pods), None)
        if pod is None or not is_running(pod):
            word = job_columns.job_status(workload, pods)
            raise Conflict(f"nothing runs in job {name!r}: {not_running(workload, pods, word)}")
        size = terminal.terminal_size()
        place = pod.metadata
        async with server.exec(place.namespace, place.name, command, tty=tty, stdin=stdin, size=size) as inside:
            return await terminal.attach(inside, tty=tty, stdin=stdin)

    return context.run(work)
