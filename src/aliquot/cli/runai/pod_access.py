"""Options and checks of the commands that connect to a pod of a job: logs, exec, bash and port-forward."""

from __future__ import annotations

from collections.abc import Sequence

import click

from aliquot import units
from aliquot.api import Pod, Workload
from aliquot.cli.runai import job_columns
from aliquot.cli.shell_completion import complete_names
from aliquot.errors import Invalid

job_argument = click.argument("name", metavar="NAME", shell_complete=complete_names("workload"))
pod_option = click.option("--pod", default="", metavar="NAME", help="Pod of the job; the first.")


def parse_duration(flag: str, text: str) -> int:
    """The seconds of a duration such as 5m; `Invalid` names the flag."""
    try:
        return units.duration(text)
    except ValueError as exc:
        raise Invalid(f"--{flag}: {exc}") from None


def may_start(job_status: str) -> bool:
    """Whether a job with this status may still start by itself."""
    return job_status in ("Pending", "ContainerCreating", "PodInitializing") or job_status.startswith("Init:")


def is_running(pod: Pod) -> bool:
    if pod.status.phase != "Running" or pod.metadata.deleted is not None:
        return False
    statuses = pod.status.container_statuses
    return not statuses or any(status.state.running for status in statuses)


def why_not_running(workload: Workload, pods: Sequence[Pod], job_status: str) -> str:
    """`it is Pending: needs 4 GPUs, no node has more than 2 free`."""
    waiting = [
        text
        for pod in pods
        for status in pod.status.container_statuses
        if status.state.waiting and (text := status.state.waiting.message)
    ]
    reasons = [*job_columns.pending_reasons(workload), *waiting, *filter(None, [workload.status.message])]
    return f"it is {job_status}" + (f": {reasons[0]}" if reasons else "")
