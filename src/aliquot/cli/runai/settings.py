"""`config project` and `template`: the rest of the classic words that are about the user's own settings."""

from __future__ import annotations

import click

from aliquot.cli.get import output_options
from aliquot.cli.projects import set_
from aliquot.cli.runai.describe_job import show_template
from aliquot.cli.runai.list_jobs import list_clusters, list_templates
from aliquot.cli.runai.program import JobVerb, project_option
from aliquot.cli.session import session

config = click.Group("config", help="Your own settings.", no_args_is_help=True)
config.add_command(set_, "project")

template = click.Group("template", help="Templates: values that shorten a submission.", no_args_is_help=True)
cluster = click.Group("cluster", help="Clusters.", no_args_is_help=True)


@template.command("list", cls=JobVerb)
@output_options
@project_option
def templates(form: str, no_headers: bool, project: str) -> int:
    """List templates."""
    return list_templates(session(), project, form, headers=not no_headers)


@template.command("get", cls=JobVerb)
@click.argument("name", metavar="NAME")
@project_option
def get(name: str, project: str) -> int:
    """Show what a template gives."""
    return show_template(session(), name, project)


@cluster.command("list", cls=JobVerb)
@output_options
def clusters(form: str, no_headers: bool) -> int:
    """List clusters."""
    return list_clusters(session(), form, headers=not no_headers)
