"""`simulate`: runs the scheduler on a scenario file, without a server.

Exit status 0 when every scenario ran, 2 for a file that is not valid, 1 for every other error.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from aliquot.cli import output
from aliquot.cli.context import command_context
from aliquot.cli.manifests import Source, parse_documents, read_sources
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import Exists, Fault, Invalid, NotFound, PlatformError
from aliquot.sim import SimulatedCluster, Simulation, load_clusters
from aliquot.sim.explain import explain_workload, has_workload
from aliquot.sim.result import to_json
from aliquot.sim.table import tables

_MAX_FILE_SIZE = 1 << 30  # fits clusters with tens of thousands of workloads; refuses a disk image


def _complete_workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Completes names of workloads in the file that was typed before."""
    # While an option lacks its value, click leaves the file among the unparsed arguments.
    typed = [ctx.params.get("file"), *ctx.args]
    paths = [path for path in typed if path and path != "-"]
    try:
        clusters = load_clusters(_data(read_sources(paths[:1], _MAX_FILE_SIZE)[0]))
    except (PlatformError, IndexError):
        return []  # the command itself reports the error
    names = {name for cluster in clusters for name in Simulation(cluster).workload_names}
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


@click.command(cls=GlobalOptionsCommand, visible_globals=("--url", "--token-file"))
@click.argument("file", metavar="FILE|-", required=False, type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of scheduling rounds; by default as the file says.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["json", "table"]),
    default="json",
    help="json, or tables with a summary of each round.",
)
@click.option(
    "--explain",
    metavar="WORKLOAD",
    shell_complete=_complete_workloads,
    help="Explain why this workload is pending or was stopped.",
)
@click.option(
    "--from-cluster", is_flag=True, help="Write the state of the live scheduler as a scenario to FILE or stdout."
)
@click.option("--timing", is_flag=True, help="Add the times of loading and planning, and the planner's peak memory.")
def simulate(
    file: str | None, rounds: int | None, output_format: str, explain: str | None, from_cluster: bool, timing: bool
) -> int:
    """Run the scheduler on a scenario file (YAML or JSON) with a cluster and its jobs, and print the decisions."""
    if from_cluster:
        _write_scenario(file)
        return 0
    if file is None:
        raise click.UsageError("give a file with a scenario, - for stdin, or --from-cluster")
    start = time.perf_counter()
    try:
        source = read_sources([file], _MAX_FILE_SIZE)[0]
        data = _data(source)
        clusters = load_clusters(data)
        load_ms = (time.perf_counter() - start) * 1000
        simulations = [Simulation(cluster, rounds, timing) for cluster in clusters]
        if simulations:
            simulations[0].load_ms = load_ms  # the time of reading the file counts for its first scenario
        results = [simulation.run() for simulation in simulations]
    except Invalid as exc:
        if isinstance(exc.__cause__, OSError):
            raise  # an unreadable file is an ordinary error, not an invalid file
        return _print_faults("stdin" if file == "-" else file, exc)
    if explain is not None:
        _explain(simulations, explain)
    elif output_format == "table":
        click.echo(
            "\n\n".join(
                _table(simulation.cluster, result) for simulation, result in zip(simulations, results, strict=True)
            )
        )
    else:
        click.echo(to_json(results if isinstance(data, list) else results[0]))
    return 0


def _data(source: Source) -> Any:
    documents = parse_documents(source)
    if len(documents) != 1:
        raise Invalid(f"{source.name}: holds {len(documents)} documents", hint="put the scenarios into one list")
    return documents[0]


def _print_faults(name: str, error: Invalid) -> int:
    """Print each fault with its path on a line, and return the exit status."""
    for fault in error.faults or (Fault("", error.message.removeprefix(f"{name}: ")),):
        click.echo(f"error: {output.printable(f'{name}: {fault}')}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    return 2


def _explain(simulations: list[Simulation], name: str) -> None:
    matching = [simulation for simulation in simulations if has_workload(simulation, name)]
    if not matching:
        raise NotFound(f"no workload is called {name!r} in this file", hint="see the names with --format table")
    for simulation in matching:
        if len(simulations) > 1:
            click.echo(output.printable(f"{simulation.cluster.scenario.name}:"))
        for sentence in explain_workload(simulation, name):
            click.echo(output.printable(sentence))


def _table(cluster: SimulatedCluster, result: dict[str, Any]) -> str:
    parts = []
    for heading, titles, rows in tables(cluster, result):
        table = output.table(titles, [[output.cell(each) for each in row] for row in rows])
        parts.append(f"{output.printable(heading)}\n{table}" if heading else table)
    return "\n\n".join([*parts, "stable" if result["stable"] else "not stable: more rounds would change more"])


def _write_scenario(file: str | None) -> None:
    """Write the state of the live scheduler as a scenario file."""
    context = command_context()
    scenario = output.as_yaml(context.run(lambda server: server.scenario()))
    if file in (None, "-"):
        click.echo(scenario)
        return
    path = Path(str(file))
    try:
        with path.open("x", encoding="utf-8") as opened:
            opened.write(scenario + "\n")
    except FileExistsError:
        raise Exists(f"{path} exists", hint="remove it, or give another name") from None
    context.note(f"written to {path}")
