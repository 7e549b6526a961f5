"""`logs`: prints the log of a job, and follows it across broken connections."""

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
from aliquot.cli.runai import job_columns
from aliquot.cli.runai.job_lookup import get_job, list_pods, pods_of_job, resolve_project, select_pod
from aliquot.cli.runai.pod_access import job_argument, may_start, parse_duration, pod_option, why_not_running
from aliquot.cli.runai.program import RunaiCommand, project_option
from aliquot.client import Server
from aliquot.client.log_following import OffsetCursor, TimestampCursor, cursor_for
from aliquot.errors import Conflict, Invalid, NotFound, Unavailable
from aliquot.store.typed_store import Store
from aliquot.streams import LogOptions

_POLL_S = 0.3
_MAX_PAUSE_S = 3.0  # between two requests for a log without new lines
_RECONNECT_TIMEOUT_S = 60.0  # long enough for a server that restarts


@click.command("logs", cls=RunaiCommand)
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Keep printing as long as the job runs.")
@pod_option
@click.option("-i", "--instance", default="", hidden=True, help="The same as --pod.")
@click.option("--since", metavar="TIME", help="Only lines newer than this duration, such as 5m.")
@click.option("--since-time", metavar="TIME", help="Only lines newer than this time, such as 2026-01-31T12:00:00Z.")
@click.option("-t", "--tail", metavar="N", help="Only the last N lines; -1 for all.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@click.option("--previous", is_flag=True, help="Log of the container before its last restart.")
@click.option("--limit-bytes", metavar="N", help="Print at most N bytes.")
@click.option("--wait-timeout", metavar="TIME", help="How long to wait for the job to start.")
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
        since=_since(since, since_time, time.time()),
        timestamps=timestamps,
        previous=previous,
        limit_bytes=_count("limit-bytes", limit_bytes),
    )
    timeout = parse_duration("wait-timeout", wait_timeout) if wait_timeout else None
    context = command_context()
    context.run(lambda server: _print_log(context, server, name, pod or instance, project, options, timeout))
    return 0


def _count(flag: str, text: str | None) -> int | None:
    if text is None or text == "-1":
        return None
    if not (text.isascii() and text.isdigit()):
        raise Invalid(f"--{flag}: must be a whole number, not {text!r}")
    return int(text)


def _since(since: str | None, since_time: str | None, now: float) -> float | None:
    if since and since_time:
        raise Invalid("--since and --since-time: give one of them")
    if since:
        return now - parse_duration("since", since)
    try:
        return units.timestamp(since_time) if since_time else None
    except ValueError as exc:
        raise Invalid(f"--since-time: {exc}") from None


async def _print_log(
    context: CommandContext,
    server: Server,
    name: str,
    pod_name: str,
    project: str,
    options: LogOptions,
    timeout: int | None,
) -> None:
    pod = await _started_pod(context, server, name, pod_name, project, wait=options.follow, timeout=timeout)
    options = dataclasses.replace(options, pod_uid=pod.metadata.uid)
    if options.follow:
        await follow_log(server, pod, options, _write, context.note)
        return
    async with server.logs(pod.metadata.namespace, pod.metadata.name, options) as log:
        async for chunk in log.chunks:
            _write(chunk)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _started_pod(
    context: CommandContext,
    server: Server,
    name: str,
    pod_name: str,
    project: str,
    *,
    wait: bool,
    timeout: int | None,
) -> Pod:
    """The pod whose log to print. With `wait` or a timeout it waits for the job to start."""
    scope = await resolve_project(context, server, project)
    deadline = None if timeout is None else time.monotonic() + timeout
    notified = False
    while True:
        workload = await get_job(server, scope, name)
        pods = pods_of_job(workload, await list_pods(server, scope.namespace))
        job_status = job_columns.job_status(workload, pods)
        pod = _selected_if_started(workload, pods, pod_name)
        in_time = deadline is None or time.monotonic() < deadline
        waits = (wait or deadline is not None) and may_start(job_status) and in_time
        if pod is not None:
            return pod
        if not waits:
            if pod_name:
                select_pod(workload, pods, pod_name)  # names the pods if there is none of this name
            raise Conflict(f"job {name!r} has no log: {why_not_running(workload, pods, job_status)}")
        if not notified:
            notified = True
            context.note(f"Waiting for job {name} to start; it is {job_status}.")
        await asyncio.sleep(_POLL_S)


def _selected_if_started(workload: Workload, pods: Sequence[Pod], pod_name: str) -> Pod | None:
    try:
        pod = select_pod(workload, pods, pod_name)
    except NotFound:
        return None
    return pod if _has_started(pod) else None


def _has_started(pod: Pod) -> bool:
    states = [state for status in pod.status.container_statuses for state in (status.state, status.last_state)]
    return pod.status.phase in ("Running", "Succeeded", "Failed") or any(s.running or s.terminated for s in states)


async def follow_log(
    server: Server, pod: Pod, options: LogOptions, write: Callable[[bytes], None], note: Callable[[str], None]
) -> None:
    """Write the log until it ends. Reconnects after a broken connection; nothing is lost or written twice."""
    cursor: OffsetCursor | TimestampCursor | None = None
    request = dataclasses.replace(options, line_times=options.limit_bytes is None)
    restarts, pause = _restart_count(pod), _POLL_S
    disconnected_at: float | None = None

    async def stream(request: LogOptions) -> None:
        nonlocal cursor, pause, disconnected_at
        async with server.logs(pod.metadata.namespace, pod.metadata.name, request) as log:
            cursor = cursor or cursor_for(log, timestamps=options.timestamps)
            cursor.begin_stream(log.offset)
            async for chunk in log.chunks:
                disconnected_at = None
                if data := cursor.feed(chunk):
                    pause = _POLL_S
                    write(data)

    while True:
        try:
            if cursor is not None:
                # After the end of the job one more request without `follow` gets what was printed while no server ran.
                current = await _same_pod(server, pod)
                follow = _is_active(current)
                await asyncio.sleep(pause if follow else 0)
                request, pause = cursor.resume_options(options, follow=follow), min(2 * pause, _MAX_PAUSE_S)
                if isinstance(cursor, TimestampCursor) and _restart_count(current) > restarts:
                    with suppress(Conflict):  # the log of the previous container is not kept
                        await stream(dataclasses.replace(request, follow=False, previous=True))
                restarts = _restart_count(current)
            await stream(request)
            # The end of the stream is not the end of the log: a server that shuts down ends its streams too.
            if not request.follow or cursor is None or not cursor.can_resume or options.limit_bytes is not None:
                return
        except (Unavailable, Conflict) as exc:
            # Without a cursor the log cannot be resumed. With one, a conflict comes from an agent that still starts.
            if cursor is None or not cursor.can_resume:
                raise
            if disconnected_at is None:
                disconnected_at = time.monotonic()
                note(f"connection lost ({exc.message}); trying again")
            elif time.monotonic() - disconnected_at > _RECONNECT_TIMEOUT_S:
                raise
            await asyncio.sleep(_POLL_S)
        except NotFound:
            if cursor is None or not cursor.can_resume:
                raise
            return  # the pod was deleted while we were disconnected


async def _same_pod(server: Server, pod: Pod) -> Pod:
    """The pod as it is now; `NotFound` when a new pod has its name."""
    current = await Store(server).get(Pod, pod.metadata.name, pod.metadata.namespace)
    if current.metadata.uid != pod.metadata.uid:
        raise NotFound("another attempt has its name")
    return current


def _is_active(pod: Pod) -> bool:
    # Unlike `is_running` this is true between two starts of the container too.
    return pod.status.phase == "Running" and pod.metadata.deleted is None


def _restart_count(pod: Pod) -> int:
    return sum(status.restart_count for status in pod.status.container_statuses)
