"""`node-files`: installs the files that shared GPUs need on a node. Our DaemonSet runs it on every node."""

from __future__ import annotations

from pathlib import Path

import click

from aliquot.cli.program import GlobalOptionsCommand


@click.command(cls=GlobalOptionsCommand)
@click.option(
    "--target", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder for the sharing library."
)
@click.option("--gates", type=click.Path(path_type=Path), metavar="DIR", help="Folder to create for gates.")
def node_files(target: Path, gates: Path | None) -> None:
    """Install the GPU sharing library into a folder of this node."""
    from aliquot.backends.kubernetes.node_files import install

    click.echo(f"{install(target, gates)} is there")
