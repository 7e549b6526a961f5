"""`explain JOB`: why it waits, for what, and what would let it run now; or where it runs, and who stopped it."""

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

# What lines are about, with what stands above them; those without a title follow at once.
_TITLES = {"why": "Why it waits:", "help": "What would let it run:"}


@click.command(cls=GlobalOptionsCommand)
@click.argument("job", metavar="JOB", shell_complete=complete_names("workload"))
@click.option("-p", "--project", default="", metavar="NAME", help="Project; your default unless given.")
@click.option(
    "-o", "--output", "output_format", type=click.Choice(["text", "json", "yaml"]), default="text", help="How."
)
@click.option("--json", "output_format", flag_value="json", help="The same as -o json.")
@click.option("--yaml", "output_format", flag_value="yaml", help="The same as -o yaml.")
def explain(job: str, project: str, output_format: str) -> int:
    """Say how a job stands: why it waits, for what, its place in the line, what would let it run now; where it runs,
    whether it could be stopped, and by whom it was."""
    context = command_context()

    async def ask(server: Server) -> Json:
        scope = await resolve_project(context, server, project)
        try:
            return await server.explain(scope.namespace, job, what_if=True)
        except NotFound as missing:
            try:
                await Store(server).get(Workload, job, scope.namespace)
            except NotFound:
                raise job_not_found(scope, job) from None
            raise missing from None  # the job is there, and the scheduler is not

    explanation = context.run(ask)
    click.echo(
        "\n".join(explanation_lines(explanation))
        if output_format == "text"
        else output.dump(explanation, output_format)
    )
    return 0


def explanation_lines(explanation: Json) -> Iterable[str]:
    """Its lines for people, under their titles."""
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
