"""`token`: access tokens of programs. The secret of a token is printed when it is created, and never again."""

from __future__ import annotations

import time

import click

from aliquot import units
from aliquot.api import KINDS, Json
from aliquot.cli.context import NamespaceScope, command_context
from aliquot.cli.delete_and_label import delete_objects
from aliquot.cli.get import Selector, output_options, print_objects
from aliquot.cli.object_refs import ObjectRef
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.shell_completion import complete_names
from aliquot.client import Server
from aliquot.errors import Invalid, Unavailable
from aliquot.store.driver import Document

_KIND = KINDS.named("token")

token = click.Group("token", help="Access tokens for programs.", no_args_is_help=True)


@token.command("create", cls=GlobalOptionsCommand)
@click.argument("name", metavar="NAME")
@click.option("--user", default="", metavar="NAME", help="User that the token authenticates; you.")
@click.option(
    "--expires",
    default="",
    metavar="DURATION",
    help="Lifetime such as 12h or 90d; without it the token does not expire.",
)
@click.option("--description", default="", metavar="TEXT", help="Purpose of the token.")
def create(name: str, user: str, expires: str, description: str) -> None:
    """Create a token and print its secret, which cannot be shown again."""
    context = command_context()
    spec = spec_from_flags(expires, description, time.time())

    async def create_token(server: Server) -> Document:
        token_user = user or str((await server.whoami()).get("user") or "")
        identity = {"apiVersion": _KIND.api_version, "kind": _KIND.name, "metadata": {"name": name}}
        return await server.create(_KIND, Document({**identity, "spec": {"user": token_user, **spec}}))

    secret = context.run(create_token).data.get("token")
    if not isinstance(secret, str):
        raise Unavailable(f"the server made token/{name} but did not say it", hint=f"`aliquot token delete {name}`")
    context.note(f"token/{name} created. Keep it now: it is not shown again.")
    click.echo(secret)


def spec_from_flags(expires: str, description: str, now: float) -> Json:
    spec: Json = {"description": description} if description else {}
    if expires:
        try:
            spec["expires"] = units.timestamp_text(int(now) + units.duration(expires))
        except (ValueError, OverflowError) as exc:
            raise Invalid(f"--expires: {exc}") from None
    return spec


@token.command("list", cls=GlobalOptionsCommand)
@output_options
def list_(output_format: str, no_headers: bool) -> None:
    """List tokens. Secrets are not shown."""
    print_objects(
        command_context(), _KIND.plural, (), NamespaceScope(), Selector(), output_format, headers=not no_headers
    )


@token.command("delete", cls=GlobalOptionsCommand)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names("token"))
def delete(names: tuple[str, ...]) -> int:
    """Delete tokens. The server refuses them from then on."""
    return delete_objects(
        command_context(), [ObjectRef(_KIND, name) for name in names], NamespaceScope(), yes=True, wait=True
    )
