"""`replay`: runs a trace of jobs through the real scheduler in virtual time, and prints figures.

Exit status 0 when the replay ran, 2 for a file that is not valid, 1 for every other error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from aliquot.cli import output
from aliquot.cli.context import command_context
from aliquot.cli.manifests import parse_documents, read_sources
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import Invalid
from aliquot.sim.replay import Replay, ReplayPolicy, figures
from aliquot.sim.replay.policies import LADDER, NAMES, named_policy, policy_from_document
from aliquot.sim.traces import FORMATS, Trace, load_quotas, load_trace, read_file
from aliquot.units import duration

_DEFAULT_LADDER = "1h,10h"


class _Seconds(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        try:
            return float(duration(value))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 90, 30s, 10m or 2h", param, ctx)


@click.command(cls=GlobalOptionsCommand)
@click.argument("file", metavar="TRACE|-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME|FILE",
    help=f"Policy of the run: {', '.join(NAMES)}, or a file with a SchedulingPolicy; repeat it to compare several.",
)  # fmt: skip
@click.option(
    "--format",
    "trace_format",
    type=click.Choice(sorted(FORMATS)),
    help="Format of the trace; by default it is detected.",
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes; by default that of the trace.")
@click.option("--gpus-per-node", type=click.IntRange(min=1, max=1024), metavar="N", help="Number of GPUs per node.")
@click.option("--quotas", "quota_file", metavar="FILE", help="Quotas: a CSV file with the columns project,gpus.")
@click.option(
    "--teams", type=click.IntRange(min=1), metavar="N", help="Distribute the jobs over N projects with equal quotas."
)
@click.option(
    "--restart-cost", type=_Seconds(), metavar="TIME", help="Time after each restart in which a job makes no progress."
)
@click.option(
    "--checkpoint-every",
    type=_Seconds(),
    metavar="TIME",
    help="Time between checkpoints; with 0 a job saves its work when it is stopped.",
)
@click.option("--grace", type=_Seconds(), default=0, metavar="TIME", help="Time that a stopped job takes to end; 0.")
@click.option(
    "--ladder", default=_DEFAULT_LADDER, metavar="TIME,…",
    help=f"GPU-time after which policy {LADDER} lowers a job's priority, step by step; {_DEFAULT_LADDER}.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Use only the first N jobs.")
@click.option(
    "--seed", type=int, metavar="N", help="Shuffle jobs that are submitted at the same time; in openb traces, all jobs."
)
@click.option("--json", "json_file", metavar="FILE|-", help="Write all figures as JSON to this file.")
@click.option(
    "--chart",
    "charts",
    multiple=True,
    metavar="FILE.png|FILE.svg",
    help="Write a chart of the figures to this file; repeatable.",
)
def replay(file: str, policies: tuple[str, ...], json_file: str | None, charts: tuple[str, ...], **options: Any) -> int:
    """Run a trace of jobs through the scheduler in virtual time, and measure allocation, completion times, wait times,
    fairness and disruption. No server is needed."""
    try:
        for chart in charts:
            _chart().check(chart)
        if json_file not in (None, "-") and not Path(str(json_file)).absolute().parent.is_dir():
            raise Invalid(f"{json_file}: its folder does not exist")
        trace = _trace(file, **{name: options[name] for name in _TRACE_OPTIONS})
        replay_policies = [_replay_policy(name, options["ladder"]) for name in policies or ("binpack",)]
    except Invalid as exc:
        if isinstance(exc.__cause__, OSError):
            raise  # an unreadable file is an ordinary error, not an invalid file
        output.print_error(exc)
        return 2
    replays: list[Replay] = []
    for policy in replay_policies:
        run = Replay(trace, policy, options["grace"])
        with _progress_bar(policy.name, len(trace.jobs)) as report_progress:
            run.run(report_progress)
        replays.append(run)
    results = [figures(run) for run in replays]
    _print_results(trace, results, replays, json_file, charts)
    return 0


_TRACE_OPTIONS = (
    "trace_format",
    "nodes",
    "gpus_per_node",
    "quota_file",
    "teams",
    "restart_cost",
    "checkpoint_every",
    "limit",
    "seed",
)


def _chart() -> Any:
    from aliquot.sim.replay import chart

    return chart


def _trace(
    file: str,
    trace_format: str | None,
    nodes: int | None,
    gpus_per_node: int | None,
    quota_file: str | None,
    teams: int | None,
    restart_cost: float | None,
    checkpoint_every: float | None,
    limit: int | None,
    seed: int | None,
) -> Trace:
    trace = load_trace(read_file(file, sys.stdin.buffer.read), trace_format, limit, seed)
    overrides: dict[str, Any] = {
        "gpus_per_node": gpus_per_node,
        "restart_cost": restart_cost,
        "checkpoint_every": checkpoint_every,
    }
    original_gpus = trace.gpus
    if nodes is not None or gpus_per_node is not None:
        trace = replace(trace, custom_nodes=())  # use equal nodes instead of those of the trace
    trace = replace(trace, nodes=nodes or trace.nodes, **{k: v for k, v in overrides.items() if v is not None})
    gpus = trace.gpus
    if teams is not None:
        jobs = tuple(replace(job, project=f"team-{index % teams:02d}") for index, job in enumerate(trace.jobs))
        trace = replace(trace, jobs=jobs, quotas={})
    if quota_file is not None:
        shares = load_quotas(read_file(quota_file), trace.gpus_per_node)
    elif trace.quotas:
        # On a smaller cluster than that of the trace, the quotas shrink in proportion.
        shares = {name: quota * gpus // original_gpus for name, quota in trace.quotas.items()}
    else:
        shares = dict.fromkeys(trace.projects, gpus // len(trace.projects))
    return replace(trace, quotas=shares)


def _replay_policy(name: str, ladder: str) -> ReplayPolicy:
    if name in NAMES:
        return named_policy(name, _steps(ladder))
    if not Path(name).exists():
        raise Invalid(f"--policy {name}: neither a name nor a file", hint=f"names are {', '.join(NAMES)}")
    source = read_sources([name])[0]
    documents = [document for document in parse_documents(source) if document is not None]
    if len(documents) != 1:
        raise Invalid(f"{name}: holds {len(documents)} documents and must hold one")
    return policy_from_document(documents[0], name)


def _steps(ladder: str) -> tuple[float, ...]:
    try:
        steps = tuple(float(duration(step.strip())) for step in ladder.split(","))
    except ValueError:
        raise Invalid(f"--ladder {ladder}: must be times such as 1h,10h") from None
    if list(steps) != sorted(set(steps)) or steps[0] <= 0:
        raise Invalid(f"--ladder {ladder}: each step must be longer than the one before")
    return steps


@contextmanager
def _progress_bar(name: str, jobs: int) -> Iterator[Callable[[int], None] | None]:
    """Shows a progress bar when stderr is a terminal. Yields its update function, or None."""
    if command_context().quiet or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=jobs, label=output.printable(name), file=sys.stderr, show_pos=True) as bar:
        step = max(1, jobs // 500)  # drawing more often would take longer than planning
        yield lambda ended: bar.update(ended - bar.pos) if ended - bar.pos >= step or ended == jobs else None


def _print_results(
    trace: Trace, results: list[dict[str, Any]], replays: list[Replay], json_file: str | None, charts: tuple[str, ...]
) -> None:
    head = {
        "trace": trace.name,
        "format": trace.format,
        "nodes": trace.nodes,
        "gpusPerNode": trace.gpus_per_node,
        "restartCostSeconds": trace.restart_cost,
        "checkpointEverySeconds": trace.checkpoint_every,
        "quotas": dict(trace.quotas),
    }
    if json_file == "-":
        click.echo(output.as_json({**head, "policies": results}))
    else:
        if json_file is not None:
            Path(json_file).write_text(output.as_json({**head, "policies": results}) + "\n", encoding="utf-8")
            command_context().note(f"figures are in {json_file}")
        click.echo(_table(trace, results))
    for chart in charts:
        title = f"{Path(trace.name).name}: {_count(len(trace.jobs), 'job')}, {_count(trace.gpus, 'GPU')}"
        _chart().draw(chart, title, results, replays)
        command_context().note(f"a chart is in {chart}")
    for replay_run in replays:
        for job in replay_run.never_started[:1]:
            refusals = replay_run.last_plan.refusals.get(job.job.name, ())
            reason = next((refusal.text for refusal in refusals), "it waits")
            summary = f"{replay_run.policy.name}: {len(replay_run.never_started)} left in the end"
            command_context().note(output.printable(f"{summary}; {job.job.name}: {reason}"))


_ROWS: tuple[tuple[str, str, Callable[[dict[str, Any]], Any]], ...] = (
    ("jobs finished", "", lambda result: result["jobs"]["finished"]),
    ("jobs left", "", lambda result: result["jobs"]["left"]),
    ("jobs placed", "", lambda result: result["jobs"]["running"]),
    ("jobs dropped", "", lambda result: result["jobs"]["dropped"]),
    ("allocation mean", "%", lambda result: 100 * result["allocation"]["mean"]),
    ("allocation p50", "%", lambda result: 100 * result["allocation"]["p50"]),
    ("allocation end", "%", lambda result: 100 * result["allocation"]["end"]),
    ("completion mean", "s", lambda result: result["jctSeconds"]["mean"]),
    ("completion p50", "s", lambda result: result["jctSeconds"]["p50"]),
    ("completion p99", "s", lambda result: result["jctSeconds"]["p99"]),
    ("wait mean", "s", lambda result: result["waitSeconds"]["mean"]),
    ("wait p99", "s", lambda result: result["waitSeconds"]["p99"]),
    ("makespan", "s", lambda result: result["makespanSeconds"]),
    ("fairness (Jain)", "", lambda result: result["fairness"]["jain"]),
    ("rho worst", "", lambda result: result["fairness"]["rho"]["worst"]),
    ("rho above 1.05", "%", lambda result: result["fairness"]["rho"]["unfairPercent"]),
    ("evictions", "", lambda result: result["disruption"]["evictions"]),
    ("moves", "", lambda result: result["disruption"]["moves"]),
    ("GPU-hours lost", "h", lambda result: result["disruption"]["gpuHoursLost"]),
    ("plans", "", lambda result: result["planning"]["plans"]),
    ("per plan", "ms", lambda result: result["planning"]["msMean"]),
)


def _table(trace: Trace, results: list[dict[str, Any]]) -> str:
    """A table with a column per policy."""
    rows = [
        [f"{name} {unit}".strip(), *(_number(value_of(result), unit) for result in results)]
        for name, unit, value_of in _ROWS
        if _is_meaningful(trace, name)
    ]
    titles = ["FIGURE", *(output.printable(result["policy"]).upper() for result in results)]
    counts = f"{_count(len(trace.projects), 'project')}, {_count(len(trace.jobs), 'job')}"
    cluster = f"{_count(trace.nodes, 'node')} × {_count(trace.gpus_per_node, 'GPU')}"
    if trace.custom_nodes:
        cluster = f"{_count(len(trace.custom_nodes), 'node')}, {_count(trace.gpus, 'GPU')}"
    shape = f"{cluster}, {counts}"
    return f"{output.printable(Path(trace.name).name)} ({trace.format}): {shape}\n{output.table(titles, rows)}"


_PLACEMENT_FIGURES = ("jobs placed", "jobs dropped", "allocation end")
_COMPLETION_FIGURES = (
    "jobs finished",
    "jobs left",
    "completion",
    "wait",
    "makespan",
    "allocation mean",
    "allocation p50",
)


def _is_meaningful(trace: Trace, name: str) -> bool:
    """Whether a figure applies to a trace: in openb traces no job ends, in others all do."""
    if name.startswith("rho"):
        return trace.format == "shockwave"  # in other traces the jobs are too short or too long for it
    if trace.format == "openb":
        return not name.startswith(_COMPLETION_FIGURES)
    return name not in _PLACEMENT_FIGURES


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return output.EMPTY
    if isinstance(value, int) or (unit in ("s", "h") and value >= 100):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if unit else f"{value:,.3f}"
