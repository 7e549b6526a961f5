"""`kubeconfig`: issues access to the Kubernetes cluster for one user in one project."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import click

from aliquot import units
from aliquot.api import Json
from aliquot.cli import output
from aliquot.cli.context import command_context
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.shell_completion import complete_names
from aliquot.errors import Exists, Invalid


@click.command(cls=GlobalOptionsCommand)
@click.option(
    "-p",
    "--project",
    required=True,
    metavar="NAME",
    help="Project whose namespace it gives access to.",
    shell_complete=complete_names("project"),
)
@click.option(
    "--user",
    required=True,
    metavar="NAME",
    help="User whose permissions it has.",
    shell_complete=complete_names("user"),
)
@click.option("--duration", default="24h", show_default=True, metavar="TIME", help="How long it is valid: 10m to 365d.")
@click.option(
    "--server",
    default="",
    metavar="URL",
    help="Address of the Kubernetes API for the user, if it differs from the server's own.",
)
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it to this file instead of stdout.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def kubeconfig(project: str, user: str, duration: str, server: str, file: Path | None, force: bool) -> None:
    """Issue a kubeconfig for a user of one project; for administrators.

    In the project's namespace the user may do what the access rules allow, and nothing in other namespaces. The
    kubeconfig stops working when its time is over, or when the user loses the last access rule of the project.
    """
    context = command_context()
    seconds, file = _seconds(duration), file.expanduser() if file else None
    _check_address(server)
    if file is not None:
        _check_free(file, force)  # before the server issues a token that could not be saved
    issued = context.run(lambda api: api.kubeconfig(project, user, seconds))
    text = output.as_yaml(_with_server(issued["kubeconfig"], server))
    if file is None:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        _write(file, text if text.endswith("\n") else text + "\n", force)
        context.note(f"{file} written")
    context.note(f"{user} may use namespace {issued['namespace']} with it until {issued['expires']}")


def _seconds(duration: str) -> int:
    try:
        return units.duration(duration)
    except (ValueError, OverflowError) as exc:
        raise Invalid(f"--duration: {exc}") from None


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("https", "http") or not parts.netloc):
        raise Invalid(f"--server: {url!r} is no address", hint="write it as https://kubernetes.example.com:6443")


def _check_free(file: Path, force: bool) -> None:
    if file.is_dir():
        raise Invalid(f"-o: {file} is a folder", hint="name a file in it")
    if not force and (file.exists() or file.is_symlink()):
        raise Exists(f"{file} is there already", hint="choose another file, or replace it with --force")


def _with_server(config: Json, server: str) -> Json:
    """The kubeconfig with another address of the Kubernetes API."""
    if not server:
        return config
    clusters = [{**entry, "cluster": {**entry["cluster"], "server": server}} for entry in config["clusters"]]
    return {**config, "clusters": clusters}


def _write(file: Path, text: str, force: bool) -> None:
    """Write the file atomically, readable only for its owner."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        if force:
            temporary.replace(file)
        else:
            os.link(temporary, file)  # fails if the file was created in the meantime
    except FileExistsError:
        raise Exists(f"{file} is there already", hint="choose another file, or replace it with --force") from None
    except OSError as exc:
        raise Invalid(f"-o: cannot write {file}: {(exc.strerror or str(exc)).lower()}") from exc
    finally:
        with suppress(OSError):
            temporary.unlink()
