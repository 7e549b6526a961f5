"""`node-files`: what the platform's own pod on every node of a cluster runs."""

from __future__ import annotations

from pathlib import Path

import click

from aliquot.cli.program import GlobalOptionsCommand


@click.command(cls=GlobalOptionsCommand)
@click.option(
    "--target", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder for the sharing library."
)
@click.option("--gates", type=click.Path(path_type=Path), metavar="DIR", help="Folder to make for gates.")
def node_files(target: Path, gates: Path | None) -> None:
    """Put the library that fences parts of GPUs into a folder of this node."""
    from aliquot.backends.kubernetes.node_files import install

    click.echo(f"{install(target, gates)} is there")
