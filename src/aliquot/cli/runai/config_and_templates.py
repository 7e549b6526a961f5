"""The groups `config`, `template` and `cluster` of the classic program."""

from __future__ import annotations

import click

from aliquot.cli.context import command_context
from aliquot.cli.get import output_options
from aliquot.cli.projects import set_default_project
from aliquot.cli.runai.describe_job import print_template
from aliquot.cli.runai.list_jobs import list_clusters, list_templates
from aliquot.cli.runai.program import RunaiCommand, project_option

config = click.Group("config", help="Your settings.", no_args_is_help=True)
config.add_command(set_default_project, "project")

template = click.Group("template", help="Templates: default values for submissions.", no_args_is_help=True)
cluster = click.Group("cluster", help="Clusters.", no_args_is_help=True)


@template.command("list", cls=RunaiCommand)
@output_options
@project_option
def templates(output_format: str, no_headers: bool, project: str) -> int:
    """List templates."""
    return list_templates(command_context(), project, output_format, headers=not no_headers)


@template.command("get", cls=RunaiCommand)
@click.argument("name", metavar="NAME")
@project_option
def get(name: str, project: str) -> int:
    """Show a template and its values."""
    return print_template(command_context(), name, project)


@cluster.command("list", cls=RunaiCommand)
@output_options
def clusters(output_format: str, no_headers: bool) -> int:
    """List clusters."""
    return list_clusters(command_context(), output_format, headers=not no_headers)
