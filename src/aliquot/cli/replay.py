"""`replay`: months of a cluster in minutes, from a trace, through the scheduler that runs live.

Exit status 0 when the trace was played, 2 for a file that is not valid, 1 for every other error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import click

from aliquot.cli import output
from aliquot.cli.context import command_context
from aliquot.cli.manifests import parse_documents, read_sources
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import Invalid
from aliquot.sim.replay import Contender, Replay, figures
from aliquot.sim.replay.policies import LADDER, NAMES, from_document, named
from aliquot.sim.traces import FORMATS, Trace, load, quotas, read
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
    help=f"A policy to play it with: {', '.join(NAMES)}, or a file with a SchedulingPolicy. Several are compared.",
)  # fmt: skip
@click.option(
    "--format", "trace_format", type=click.Choice(sorted(FORMATS)), help="Format of the trace; else by its content."
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes; as the trace has it unless given.")
@click.option("--gpus-per-node", type=click.IntRange(min=1, max=1024), metavar="N", help="GPUs of each node.")
@click.option("--quotas", "quota_file", metavar="FILE", help="Quotas: a CSV file with the columns project,gpus.")
@click.option(
    "--teams", type=click.IntRange(min=1), metavar="N", help="Deal the jobs out to N projects of equal quota."
)
@click.option("--restart-cost", type=_Seconds(), metavar="TIME", help="No progress so long after each restart.")
@click.option("--checkpoint-every", type=_Seconds(), metavar="TIME", help="0: work is saved when a job is stopped.")
@click.option("--grace", type=_Seconds(), default=0, metavar="TIME", help="What a stopped job takes to leave; 0.")
@click.option(
    "--ladder", default=_DEFAULT_LADDER, metavar="TIME,…",
    help=f"GPU-time after which policy {LADDER} lowers a job's priority, step by step; {_DEFAULT_LADDER}.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs.")
@click.option("--seed", type=int, metavar="N", help="Shuffle jobs of the same moment; in openb, all.")
@click.option("--json", "json_file", metavar="FILE|-", help="Write all figures as JSON.")
@click.option("--chart", "charts", multiple=True, metavar="FILE.png|FILE.svg", help="Draw the figures.")
def replay(file: str, policies: tuple[str, ...], json_file: str | None, charts: tuple[str, ...], **given: Any) -> int:
    """Play a trace of jobs through the scheduler in virtual time, and measure allocation, completion, wait, fairness
    and disruption. No server is needed."""
    try:
        for chart in charts:
            _chart().check(chart)
        if json_file not in (None, "-") and not Path(str(json_file)).absolute().parent.is_dir():
            raise Invalid(f"{json_file}: its folder does not exist")
        trace = _trace(file, **{name: given[name] for name in _SHAPE})
        contenders = [_contender(name, given["ladder"]) for name in policies or ("binpack",)]
    except Invalid as exc:
        if isinstance(exc.__cause__, OSError):
            raise  # there is no file to be valid or not
        output.print_error(exc)
        return 2
    played: list[Replay] = []
    for contender in contenders:
        one = Replay(trace, contender, given["grace"])
        with _progress(contender.name, len(trace.jobs)) as report_progress:
            one.run(report_progress)
        played.append(one)
    results = [figures(one) for one in played]
    _write(trace, results, played, json_file, charts)
    return 0


_SHAPE = (
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
    trace = load(read(file, sys.stdin.buffer.read), trace_format, limit, seed)
    asked: dict[str, Any] = {
        "gpus_per_node": gpus_per_node,
        "restart_cost": restart_cost,
        "checkpoint_every": checkpoint_every,
    }
    before = trace.gpus
    if nodes is not None or gpus_per_node is not None:
        trace = changed(trace, machines=())  # equal ones instead of its own
    trace = changed(trace, nodes=nodes or trace.nodes, **{k: v for k, v in asked.items() if v is not None})
    gpus = trace.gpus
    if teams is not None:
        jobs = tuple(changed(job, project=f"team-{index % teams:02d}") for index, job in enumerate(trace.jobs))
        trace = changed(trace, jobs=jobs, quotas={})
    if quota_file is not None:
        shares = quotas(read(quota_file), trace.gpus_per_node)
    elif trace.quotas:
        # A smaller cluster than the trace's own: everybody's part of it is smaller too.
        shares = {name: quota * gpus // before for name, quota in trace.quotas.items()}
    else:
        shares = dict.fromkeys(trace.projects, gpus // len(trace.projects))
    return changed(trace, quotas=shares)


def _contender(name: str, ladder: str) -> Contender:
    if name in NAMES:
        return named(name, _steps(ladder))
    if not Path(name).exists():
        raise Invalid(f"--policy {name}: neither a name nor a file", hint=f"names are {', '.join(NAMES)}")
    source = read_sources([name])[0]
    documents = [one for one in parse_documents(source) if one is not None]
    if len(documents) != 1:
        raise Invalid(f"{name}: holds {len(documents)} documents and must hold one")
    return from_document(documents[0], name)


def _steps(ladder: str) -> tuple[float, ...]:
    try:
        steps = tuple(float(duration(one.strip())) for one in ladder.split(","))
    except ValueError:
        raise Invalid(f"--ladder {ladder}: must be times such as 1h,10h") from None
    if list(steps) != sorted(set(steps)) or steps[0] <= 0:
        raise Invalid(f"--ladder {ladder}: each step must be longer than the one before")
    return steps


@contextmanager
def _progress(name: str, jobs: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal; nothing elsewhere."""
    if command_context().quiet or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=jobs, label=output.printable(name), file=sys.stderr, show_pos=True) as bar:
        step = max(1, jobs // 500)  # a terminal is slower than a plan
        yield lambda ended: bar.update(ended - bar.pos) if ended - bar.pos >= step or ended == jobs else None


def _write(
    trace: Trace, results: list[dict[str, Any]], played: list[Replay], json_file: str | None, charts: tuple[str, ...]
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
        _chart().draw(chart, title, results, played)
        command_context().note(f"a chart is in {chart}")
    for one in played:
        for work in one.left[:1]:
            why = next((refusal.text for refusal in one.last.refusals.get(work.job.name, ())), "it waits")
            command_context().note(
                output.printable(f"{one.contender.name}: {len(one.left)} left in the end; {work.job.name}: {why}")
            )


_ROWS: tuple[tuple[str, str, Callable[[dict[str, Any]], Any]], ...] = (
    ("jobs finished", "", lambda one: one["jobs"]["finished"]),
    ("jobs left", "", lambda one: one["jobs"]["left"]),
    ("jobs placed", "", lambda one: one["jobs"]["running"]),
    ("jobs dropped", "", lambda one: one["jobs"]["dropped"]),
    ("allocation mean", "%", lambda one: 100 * one["allocation"]["mean"]),
    ("allocation p50", "%", lambda one: 100 * one["allocation"]["p50"]),
    ("allocation end", "%", lambda one: 100 * one["allocation"]["end"]),
    ("completion mean", "s", lambda one: one["jctSeconds"]["mean"]),
    ("completion p50", "s", lambda one: one["jctSeconds"]["p50"]),
    ("completion p99", "s", lambda one: one["jctSeconds"]["p99"]),
    ("wait mean", "s", lambda one: one["waitSeconds"]["mean"]),
    ("wait p99", "s", lambda one: one["waitSeconds"]["p99"]),
    ("makespan", "s", lambda one: one["makespanSeconds"]),
    ("fairness (Jain)", "", lambda one: one["fairness"]["jain"]),
    ("rho worst", "", lambda one: one["fairness"]["rho"]["worst"]),
    ("rho above 1.05", "%", lambda one: one["fairness"]["rho"]["unfairPercent"]),
    ("evictions", "", lambda one: one["disruption"]["evictions"]),
    ("moves", "", lambda one: one["disruption"]["moves"]),
    ("GPU-hours lost", "h", lambda one: one["disruption"]["gpuHoursLost"]),
    ("plans", "", lambda one: one["planning"]["plans"]),
    ("per plan", "ms", lambda one: one["planning"]["msMean"]),
)


def _table(trace: Trace, results: list[dict[str, Any]]) -> str:
    """A column per policy: that is how they are compared."""
    rows = [
        [f"{name} {unit}".strip(), *(_number(pick(one), unit) for one in results)]
        for name, unit, pick in _ROWS
        if _says(trace, name)
    ]
    titles = ["FIGURE", *(output.printable(one["policy"]).upper() for one in results)]
    counts = f"{_count(len(trace.projects), 'project')}, {_count(len(trace.jobs), 'job')}"
    cluster = f"{_count(trace.nodes, 'node')} × {_count(trace.gpus_per_node, 'GPU')}"
    if trace.machines:
        cluster = f"{_count(len(trace.machines), 'node')}, {_count(trace.gpus, 'GPU')}"
    shape = f"{cluster}, {counts}"
    return f"{output.printable(Path(trace.name).name)} ({trace.format}): {shape}\n{output.table(titles, rows)}"


_OF_FILLING = ("jobs placed", "jobs dropped", "allocation end")
_OF_ENDING = ("jobs finished", "jobs left", "completion", "wait", "makespan", "allocation mean", "allocation p50")


def _says(trace: Trace, name: str) -> bool:
    """Whether a figure says anything about a trace: in openb nothing ends, elsewhere everything does."""
    if name.startswith("rho"):
        return trace.format == "shockwave"  # elsewhere jobs last seconds or months
    if trace.format == "openb":
        return not name.startswith(_OF_ENDING)
    return name not in _OF_FILLING


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return output.EMPTY
    if isinstance(value, int) or (unit in ("s", "h") and value >= 100):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if unit else f"{value:,.3f}"
