"""`explain JOB`: why a job is pending and what would let it run, or where it runs; and what stopped it before."""

from __future__ import annotations

from collections.abc import Iterable

import click

from aliquot.api import Json, Workload
from aliquot.cli import output
from aliquot.cli.context import command_context
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.runai.job_lookup import job_not_found, resolve_project
from aliquot.cli.shell_completion import complete_names
from aliquot.client import Server
from aliquot.errors import NotFound
from aliquot.store.typed_store import Store

# The `about` values of lines that are printed under a title.
_TITLES = {"why": "Why it waits:", "help": "What would let it run:"}


@click.command(cls=GlobalOptionsCommand)
@click.argument("job", metavar="JOB", shell_complete=complete_names("workload"))
@click.option("-p", "--project", default="", metavar="NAME", help="Project; your default unless given.")
@click.option(
    "-o",
    "--output",
    "output_format",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    help="Output format.",
)
@click.option("--json", "output_format", flag_value="json", help="The same as -o json.")
@click.option("--yaml", "output_format", flag_value="yaml", help="The same as -o yaml.")
def explain(job: str, project: str, output_format: str) -> int:
    """Explain the state of a job.

    For a pending job: why it waits, its position in the queue, and what would let it run now. For a running job: where
    it runs and whether it can be preempted. For both: what stopped it before.
    """
    context = command_context()

    async def read_explanation(server: Server) -> Json:
        scope = await resolve_project(context, server, project)
        try:
            return await server.explain(scope.namespace, job, what_if=True)
        except NotFound as missing:
            try:
                await Store(server).get(Workload, job, scope.namespace)
            except NotFound:
                raise job_not_found(scope, job) from None
            raise missing from None  # the job exists; the server has no scheduler

    explanation = context.run(read_explanation)
    click.echo(
        "\n".join(explanation_lines(explanation))
        if output_format == "text"
        else output.dump(explanation, output_format)
    )
    return 0


def explanation_lines(explanation: Json) -> Iterable[str]:
    """The lines of an explanation as text, under their titles."""
    lines = [
        (str(line.get("about")), output.printable(str(line.get("text")))) for line in explanation.get("lines") or ()
    ]
    last = ""
    for about, text in lines:
        title = _TITLES.get(about)
        if title and about != last:
            yield title
        yield f"  {text}" if title else text
        last = about
