"""`kubeconfig`: access to the Kubernetes cluster below the platform, for one user in one project."""

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
    "-p", "--project", required=True, metavar="NAME", help="Where it works.", shell_complete=complete_names("project")
)
@click.option(
    "--user", required=True, metavar="NAME", help="Whose rights it has.", shell_complete=complete_names("user")
)
@click.option("--duration", default="24h", show_default=True, metavar="TIME", help="How long it works: 10m to 365d.")
@click.option("--server", default="", metavar="URL", help="Where the user reaches Kubernetes, if not where we do.")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write it there, not here."
)
@click.option("--force", is_flag=True, help="Replace the file.")
def kubeconfig(project: str, user: str, duration: str, server: str, file: Path | None, force: bool) -> None:
    """Issue a kubeconfig for a user of one project; for administrators.

    With it the user may do in the project's namespace what access rules say, and nothing anywhere else. It ends with
    its time, and at once when the user loses the last access rule there.
    """
    context = command_context()
    seconds, file = _seconds(duration), file.expanduser() if file else None
    _check_address(server)
    if file is not None:
        _check_free(file, force)  # before a token is made that nobody could keep
    issued = context.run(lambda api: api.kubeconfig(project, user, seconds))
    text = output.as_yaml(_pointed(issued["kubeconfig"], server))
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


def _pointed(config: Json, server: str) -> Json:
    """The kubeconfig with the address that its user needs."""
    if not server:
        return config
    clusters = [{**entry, "cluster": {**entry["cluster"], "server": server}} for entry in config["clusters"]]
    return {**config, "clusters": clusters}


def _write(file: Path, text: str, force: bool) -> None:
    """For its owner's eyes only from the first moment; whole or not at all."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        if force:
            fresh.replace(file)
        else:
            os.link(fresh, file)  # fails if somebody was faster
    except FileExistsError:
        raise Exists(f"{file} is there already", hint="choose another file, or replace it with --force") from None
    except OSError as exc:
        raise Invalid(f"-o: cannot write {file}: {(exc.strerror or str(exc)).lower()}") from exc
    finally:
        with suppress(OSError):
            fresh.unlink()
