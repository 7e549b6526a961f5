"""`exec` and `bash`: run a command or a shell in a pod of a job."""

from __future__ import annotations

from collections.abc import Sequence

import click

from aliquot.cli.context import command_context
from aliquot.cli.runai import job_columns, terminal
from aliquot.cli.runai.job_lookup import get_job, list_pods, pods_of_job, resolve_project, select_pod
from aliquot.cli.runai.pod_access import is_running, job_argument, pod_option, why_not_running
from aliquot.cli.runai.program import TRAILING_ARGUMENTS, RunaiCommand, project_option
from aliquot.client import Server
from aliquot.errors import Conflict


class ExecCommand(RunaiCommand):
    max_positionals = 1  # the job's name; the rest is the command to run, with its own flags


@click.command("exec", cls=ExecCommand, epilog="Flags after NAME belong to the command: `runai exec NAME ls -l`.")
@job_argument
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input to the command.")
@click.option("-t", "--tty", is_flag=True, help="Allocate a terminal.")
@pod_option
@project_option
@click.pass_context
def exec_(ctx: click.Context, name: str, stdin: bool, tty: bool, pod: str, project: str) -> int:
    """Run a command in a job: `exec NAME COMMAND [ARG]...`."""
    command = ctx.meta.get(TRAILING_ARGUMENTS)
    if not command:
        raise click.UsageError("which command? `runai exec NAME COMMAND`.")
    return _exec(name, command, pod, project, tty=tty and terminal.is_terminal(), stdin=stdin or tty)


@click.command("bash", cls=RunaiCommand)
@job_argument
@pod_option
@project_option
def bash(name: str, pod: str, project: str) -> int:
    """Open a shell in a job. The exit status is that of the shell."""
    return _exec(name, ["bash"], pod, project, tty=terminal.is_terminal(), stdin=True)


def _exec(name: str, command: Sequence[str], pod_name: str, project: str, *, tty: bool, stdin: bool) -> int:
    context = command_context()

    async def run(server: Server) -> int:
        scope = await resolve_project(context, server, project)
        workload = await get_job(server, scope, name)
        pods = pods_of_job(workload, await list_pods(server, scope.namespace))
        pod = select_pod(workload, pods, pod_name) if pod_name else next(filter(is_running, pods), None)
        if pod is None or not is_running(pod):
            job_status = job_columns.job_status(workload, pods)
            raise Conflict(f"nothing runs in job {name!r}: {why_not_running(workload, pods, job_status)}")
        size = terminal.terminal_size()
        meta = pod.metadata
        async with server.exec(meta.namespace, meta.name, command, tty=tty, stdin=stdin, size=size) as stream:
            return await terminal.attach(stream, tty=tty, stdin=stdin)

    return context.run(run)
