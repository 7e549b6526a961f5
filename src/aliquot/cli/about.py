"""`version`, `whoami`, `crds` and `completion`: commands about the program itself and its user."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import click

from aliquot import __version__
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import Invalid

_SHELLS = ("bash", "zsh", "fish", "powershell")
_INSTALL = {
    "bash": "# Add to ~/.bashrc:  eval \"$({program} completion bash)\"",
    "zsh": "# Add to ~/.zshrc:  eval \"$({program} completion zsh)\"",
    "fish": "# Write to ~/.config/fish/completions/{program}.fish",
    "powershell": "# Add to $PROFILE:  {program} completion powershell | Out-String | Invoke-Expression",
}  # fmt: skip


@click.command(cls=GlobalOptionsCommand)
@click.option("--wide", is_flag=True, help="Also print the versions of Python and of the system.")
def version(wide: bool) -> None:
    """Print the version."""
    click.echo(f"aliquot {__version__}")
    if wide:
        click.echo(f"python {platform.python_version()}")
        click.echo(f"system {platform.system()} {platform.release()} {platform.machine()}")


@click.command(cls=GlobalOptionsCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer of the server as JSON.")
def whoami(as_json: bool) -> None:
    """Show your user and your roles on the server."""
    from aliquot.cli import output
    from aliquot.cli.context import command_context

    answer = command_context().run(lambda server: server.whoami())
    if as_json:
        click.echo(output.as_json(answer))
        return
    rows = {
        "User": answer.get("user"),
        "Subject": answer.get("subject"),
        "Roles": roles_text(answer.get("roles") or []),
    }
    for title, text in rows.items():
        if text:
            click.echo(f"{title + ':':<9}{output.printable(str(text))}")


def roles_text(roles: Sequence[Any]) -> str:
    """`viewer (project team-a), editor (cluster)`; a role may also be plain text."""
    return ", ".join(
        f"{role.get('role')} ({role.get('scope')})" if isinstance(role, dict) else str(role) for role in roles
    )


@click.command(cls=GlobalOptionsCommand)
def crds() -> None:
    """Print the custom resource definitions as YAML, for `kubectl apply --server-side -f -`."""
    from aliquot.api.crds import crds
    from aliquot.cli import output

    for definition in crds():
        click.echo("---\n" + output.as_yaml(definition))


@click.command(cls=GlobalOptionsCommand)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for your shell. Its first line says how to install it."""
    from click.shell_completion import get_completion_class

    root = ctx.find_root()
    program = root.info_name or "aliquot"
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise Invalid(f"no completion for {shell}")
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    click.echo(_INSTALL[shell].format(program=program))
    click.echo(completion_class(root.command, {}, program, variable).source())
