"""`runai-adm set|remove node-role`: the roles of nodes, as labels that the scheduler reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from aliquot.api import KINDS
from aliquot.cli.context import command_context
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.shell_completion import complete_names
from aliquot.store.driver import StoreDriver

# flag -> label. The names are those of Run:ai, which administrators know.
ROLES = {
    "runai-system-worker": "node-role.kubernetes.io/runai-system",
    "gpu-worker": "node-role.kubernetes.io/runai-gpu-worker",
    "cpu-worker": "node-role.kubernetes.io/runai-cpu-worker",
}

set_ = click.Group("set", help="Assign a role to nodes.", no_args_is_help=True)
remove = click.Group("remove", help="Remove a role from nodes.", no_args_is_help=True)


def _role_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag in reversed(ROLES):
        command = click.option(
            f"--{flag}", flag.replace("-", "_"), is_flag=True, help=f"Role with the label {ROLES[flag]}."
        )(command)
    command = click.option("--all", "all_", is_flag=True, help="All nodes.")(command)
    names = click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=complete_names("nodes"))
    return names(command)


@set_.command("node-role", cls=GlobalOptionsCommand)
@_role_options
def set_role(names: tuple[str, ...], all_: bool, **roles: bool) -> None:
    """Assign a role to nodes."""
    _change(names, all_, roles, "", "set")


@remove.command("node-role", cls=GlobalOptionsCommand)
@_role_options
def remove_role(names: tuple[str, ...], all_: bool, **roles: bool) -> None:
    """Remove a role from nodes."""
    _change(names, all_, roles, None, "removed")


def _change(names: tuple[str, ...], all_: bool, roles: dict[str, bool], value: str | None, done: str) -> None:
    chosen = [flag for flag in ROLES if roles[flag.replace("-", "_")]]
    if not chosen:
        raise click.UsageError("give a role: " + ", ".join(f"--{flag}" for flag in ROLES))
    if bool(names) == all_:
        raise click.UsageError("give the names of nodes, or --all")
    patch = {"metadata": {"labels": {ROLES[flag]: value for flag in chosen}}}
    kind = KINDS.named("nodes")

    async def patch_nodes(driver: StoreDriver) -> None:
        nodes = (await driver.list(kind)).items if all_ else [await driver.get(kind, name) for name in names]
        for document in sorted(nodes, key=lambda node: node.name):
            await driver.patch(kind, document.name, "", patch)
            click.echo(f"node/{document.name} role {', '.join(chosen)} {done}")

    command_context().run(patch_nodes)
