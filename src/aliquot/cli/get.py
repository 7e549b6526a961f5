"""`get`: objects as a table, as JSON or YAML, or by name only; with --watch also every later change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from aliquot.api import KINDS, Column
from aliquot.cli import output
from aliquot.cli.context import CommandContext, NamespaceScope, command_context, namespace_options
from aliquot.cli.object_refs import ObjectRef, parse_refs
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.shell_completion import complete_kinds, complete_names
from aliquot.cli.watch import follow
from aliquot.errors import NotFound
from aliquot.store.driver import AnyKind, Document, StoreDriver

# The command that creates an object of a kind, for the message of an empty list.
_CREATE_COMMANDS = {
    "Project": "aliquot project create NAME --gpu N",
    "Department": "aliquot department create NAME --gpu N",
    "Token": "aliquot token create NAME",
}

Documents = list[Document]


@dataclass(frozen=True)
class ListingFormat:
    """How to print a listing: table, wide, json, yaml or name, and which further columns a table has."""

    name: str = "table"
    headers: bool = True
    with_namespace: bool = False
    with_kind: bool = False

    @property
    def is_data(self) -> bool:
        return self.name in ("json", "yaml")

    def columns(self, kind: AnyKind) -> list[Column]:
        columns = [column for column in kind.columns if self.name == "wide" or not column.wide]
        titles = {column.title.lower() for column in columns}
        first = [Column("Namespace", ".metadata.namespace")] if self.with_namespace and kind.namespaced else []
        first += [] if "name" in titles else [Column("Name", ".metadata.name")]
        last = [] if "age" in titles else [Column("Age", ".metadata.creationTimestamp", "date")]
        return [*first, *columns, *last]

    def row(self, kind: AnyKind, data: Any, now: float) -> list[str]:
        return [self._cell(kind, column, data, now) for column in self.columns(kind)]

    def _cell(self, kind: AnyKind, column: Column, data: Any, now: float) -> str:
        value = output.jsonpath_value(data, column.path)
        if column.value_type == "date":
            return output.age_of(value, now) if "creation" in column.path else output.age_or_countdown(value, now)
        text = output.cell(value)
        return f"{kind.singular}/{text}" if self.with_kind and column.path == ".metadata.name" else text

    def table(self, kind: AnyKind, documents: Sequence[Document], now: float) -> str:
        titles = [column.title.upper() for column in self.columns(kind)]
        rows = [self.row(kind, document.data, now) for document in documents]
        return output.table(titles, rows, headers=self.headers)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add -o, --json, --yaml and --table, which the command gets as `output_format`, and --no-headers."""
    command = click.option("--no-headers", is_flag=True, help="Do not print the line of titles.")(command)
    for name in ("table", "yaml", "json"):
        same = f"The same as -o {name}."
        command = click.option(f"--{name}", "output_format", flag_value=name, help=same)(command)
    choices = click.Choice(["table", "wide", "json", "yaml", "name"])
    option = click.option("-o", "--output", "output_format", type=choices, default="table", help="Output format.")
    return option(command)


def _epilog() -> str:
    return "Kinds: " + ", ".join(
        f"{kind.plural} ({', '.join(kind.aliases)})" if kind.aliases else kind.plural for kind in KINDS
    )


@click.command(cls=GlobalOptionsCommand, epilog=_epilog())
@click.argument("kinds", metavar="KIND[,KIND]", shell_complete=complete_kinds)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names())
@click.option("-l", "--selector", "labels", default="", metavar="k=v,...", help="Only objects with these labels.")
@click.option(
    "--field-selector", "fields", default="", metavar="path=v,...", help="Only objects with these field values."
)
@click.option("-w", "--watch", is_flag=True, help="Keep running and print every change.")
@output_options
@namespace_options(all_namespaces=True)
def get(
    kinds: str,
    names: tuple[str, ...],
    labels: str,
    fields: str,
    watch: bool,
    output_format: str,
    no_headers: bool,
    scope: NamespaceScope,
) -> int:
    """List the objects of a kind, or get some by name."""
    selector = Selector(labels, fields)
    context = command_context()
    print_objects(context, kinds, names, scope, selector, output_format, watch=watch, headers=not no_headers)
    return 0


@click.command(cls=GlobalOptionsCommand)
@click.argument("kinds", metavar="KIND", shell_complete=complete_kinds)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names())
@output_options
@namespace_options(all_namespaces=True)
@click.pass_context
def list_(
    ctx: click.Context,
    kinds: str,
    names: tuple[str, ...],
    output_format: str,
    no_headers: bool,
    scope: NamespaceScope,
) -> int:
    """List the objects of a kind."""
    from aliquot.cli.projects import list_queues

    kind = KINDS.named(kinds)
    if kind.name in ("Project", "Department") and not names and output_format == "table":
        return list_queues(command_context(), kind, output_format, headers=not no_headers)
    print_objects(command_context(), kinds, names, scope, Selector(), output_format, headers=not no_headers)
    return 0


@dataclass(frozen=True)
class Selector:
    labels: str = ""
    fields: str = ""

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)


def print_objects(
    context: CommandContext,
    kinds: str,
    names: Sequence[str],
    scope: NamespaceScope,
    selector: Selector,
    output_format: str,
    *,
    watch: bool = False,
    headers: bool = True,
) -> None:
    """Print the named objects, or all objects of the kinds that the selector matches."""
    if names or "/" in kinds:
        if selector:
            raise click.UsageError("give names or selectors, not both")
        refs = parse_refs(kinds, names)
        listing_format = ListingFormat(output_format, headers)
        if watch:
            if len(refs) != 1:
                raise click.UsageError("--watch follows one object or one kind")
            selector = Selector(fields=f"metadata.name={refs[0].name}")
            _watch(context, refs[0].kind, scope, selector, listing_format)
        else:
            _print_named(context, refs, scope, listing_format)
        return
    chosen = [KINDS.named(name) for name in kinds.split(",")]
    listing_format = ListingFormat(output_format, headers, scope.all_namespaces, with_kind=len(chosen) > 1)
    if watch:
        if len(chosen) != 1:
            raise click.UsageError("--watch follows one kind")
        _watch(context, chosen[0], scope, selector, listing_format)
    else:
        _print_listed(context, chosen, scope, selector, listing_format)


def _print_listed(
    context: CommandContext,
    kinds: Sequence[AnyKind],
    scope: NamespaceScope,
    selector: Selector,
    listing_format: ListingFormat,
) -> None:
    async def read(driver: StoreDriver) -> list[tuple[AnyKind, Documents]]:
        listings = []
        for kind in kinds:
            namespace = scope.for_list(kind, context.default_project(kind))
            listing = await driver.list(kind, namespace, labels=selector.labels, fields=selector.fields)
            listings.append((kind, sorted(listing.items, key=lambda document: (document.namespace, document.name))))
        return listings

    listings = context.run(read)
    if listing_format.is_data:
        everything = [document for _, documents in listings for document in documents]
        click.echo(output.dump(list_object(everything), listing_format.name))
        return
    _print_tables(listings, listing_format)
    for kind, documents in listings:
        if not documents:
            context.note(_empty_message(kind, scope, selector, context.default_project(kind)))


def _print_named(
    context: CommandContext, refs: Sequence[ObjectRef], scope: NamespaceScope, listing_format: ListingFormat
) -> None:
    missing: list[NotFound] = []

    async def read(driver: StoreDriver) -> list[tuple[AnyKind, Documents]]:
        listings: dict[str, tuple[AnyKind, Documents]] = {}
        for kind, name in refs:
            try:
                namespace = scope.for_object(kind, context.default_project(kind))
                document = await driver.get(kind, name, namespace)
            except NotFound as exc:
                missing.append(exc)
                continue
            listings.setdefault(kind.name, (kind, []))[1].append(document)
        return list(listings.values())

    listings = context.run(read)
    if listing_format.is_data:
        documents = [document for _, group in listings for document in group]
        if documents:
            data = documents[0].data if len(refs) == 1 else list_object(documents)
            click.echo(output.dump(data, listing_format.name))
    else:
        _print_tables(listings, listing_format)
    for error in missing[:-1]:
        output.print_error(error)
    if missing:
        raise missing[-1]


def _print_tables(listings: Sequence[tuple[AnyKind, Documents]], listing_format: ListingFormat) -> None:
    now = time.time()
    nonempty = [(kind, documents) for kind, documents in listings if documents]
    for index, (kind, documents) in enumerate(nonempty):
        if listing_format.name == "name":
            click.echo("\n".join(f"{kind.singular}/{document.name}" for document in documents))
            continue
        if index:
            click.echo()
        click.echo(listing_format.table(kind, documents, now))


def _watch(
    context: CommandContext,
    kind: AnyKind,
    scope: NamespaceScope,
    selector: Selector,
    listing_format: ListingFormat,
) -> None:
    namespace = scope.for_list(kind, context.default_project(kind))
    widths: list[int] = []

    def print_first(documents: Documents) -> None:
        if listing_format.name not in ("table", "wide"):
            for document in documents:
                print_change(document, False)
            return
        titles = [column.title.upper() for column in listing_format.columns(kind)]
        rows = [listing_format.row(kind, document.data, time.time()) for document in documents]
        widths[:] = output.column_widths([titles, *rows])
        if listing_format.headers:
            click.echo(output.format_row(titles, widths))
        for row in rows:
            click.echo(output.format_row(row, widths, colour=output.use_colour()))

    def print_change(document: Document, deleted: bool) -> None:
        suffix = "   (deleted)" if deleted else ""
        if listing_format.name == "name":
            click.echo(f"{kind.singular}/{document.name}{suffix}")
        elif listing_format.name == "json":
            click.echo(document.raw.decode())
        elif listing_format.name == "yaml":
            click.echo("---\n" + output.as_yaml(document.data))
        else:
            row = listing_format.row(kind, document.data, time.time())
            click.echo(output.format_row(row, widths, colour=output.use_colour()) + suffix)

    context.run(
        lambda driver: follow(
            driver,
            kind,
            namespace,
            labels=selector.labels,
            fields=selector.fields,
            on_list=print_first,
            on_change=print_change,
            note=context.note,
        )
    )


def list_object(documents: Sequence[Document]) -> dict[str, Any]:
    """The objects as one `List` object, which `apply` accepts."""
    return {"apiVersion": "v1", "kind": "List", "items": [document.data for document in documents]}


def _empty_message(kind: AnyKind, scope: NamespaceScope, selector: Selector, default_project: str) -> str:
    if selector:
        return f"No {kind.plural} match."
    where = ""
    if scope.namespace:
        where = f" in namespace {scope.namespace}"
    elif kind.namespaced and not scope.all_namespaces:
        where = f" in project {scope.project or default_project}"
    create = _CREATE_COMMANDS.get(kind.name, "aliquot apply -f FILE")
    return f"No {kind.plural}{where} yet. Make one with: {create}"
