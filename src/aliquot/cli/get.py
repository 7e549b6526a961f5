"""`get`: objects as a table, as JSON or YAML, or by name only; once, or for as long as they change."""

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

# How to get a first object of a kind, for lists that are empty.
_FIRST = {
    "Project": "aliquot project create NAME --gpu N",
    "Department": "aliquot department create NAME --gpu N",
    "Token": "aliquot token create NAME",
}


@dataclass(frozen=True)
class ListingFormat:
    """How a listing is to be shown."""

    output_format: str = "table"
    headers: bool = True
    with_namespace: bool = False
    with_kind: bool = False

    def columns(self, kind: AnyKind) -> list[Column]:
        shown = [column for column in kind.columns if self.output_format == "wide" or not column.wide]
        own = {column.title.lower() for column in shown}
        first = [Column("Namespace", ".metadata.namespace")] if self.with_namespace and kind.namespaced else []
        first += [] if "name" in own else [Column("Name", ".metadata.name")]
        last = [] if "age" in own else [Column("Age", ".metadata.creationTimestamp", "date")]
        return [*first, *shown, *last]

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
    """-o, --json and --yaml, handed to the command as `form`."""
    command = click.option("--no-headers", is_flag=True, help="Leave the title line out.")(command)
    for output_format in ("table", "yaml", "json"):
        command = click.option(
            f"--{output_format}", "output_format", flag_value=output_format, help=f"The same as -o {output_format}."
        )(command)
    forms = click.Choice(["table", "wide", "json", "yaml", "name"])
    return click.option("-o", "--output", "output_format", type=forms, default="table", help="How to print it.")(
        command
    )


def _epilog() -> str:
    return "Kinds: " + ", ".join(
        f"{kind.plural} ({', '.join(kind.aliases)})" if kind.aliases else kind.plural for kind in KINDS
    )


@click.command(cls=GlobalOptionsCommand, epilog=_epilog())
@click.argument("kinds", metavar="KIND[,KIND]", shell_complete=complete_kinds)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names())
@click.option("-l", "--selector", "labels", default="", metavar="k=v,...", help="Only those with these labels.")
@click.option("--field-selector", "fields", default="", metavar="path=v,...", help="Only those with these fields.")
@click.option("-w", "--watch", is_flag=True, help="Go on and show every change.")
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
    """List objects of a kind, or show some by name."""
    print_objects(
        command_context(),
        kinds,
        names,
        scope,
        Selector(labels, fields),
        output_format,
        watch=watch,
        headers=not no_headers,
    )
    return 0


@click.command(cls=GlobalOptionsCommand)
@click.argument("kinds", metavar="KIND", shell_complete=complete_kinds)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names())
@output_options
@namespace_options(all_namespaces=True)
@click.pass_context
def list_(
    ctx: click.Context, kinds: str, names: tuple[str, ...], output_format: str, no_headers: bool, scope: NamespaceScope
) -> int:
    """List objects of a kind."""
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

    @property
    def any(self) -> bool:
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
    if names or "/" in kinds:
        if selector.any:
            raise click.UsageError("give names or selectors, not both")
        refs = parse_refs(kinds, names)
        if watch:
            if len(refs) != 1:
                raise click.UsageError("--watch follows one object or one kind")
            selector = Selector(fields=f"metadata.name={refs[0].name}")
            _watch(context, refs[0].kind, scope, selector, ListingFormat(output_format, headers))
        else:
            _show_named(context, refs, scope, ListingFormat(output_format, headers))
        return
    chosen = [KINDS.named(word) for word in kinds.split(",")]
    listing_format = ListingFormat(
        output_format, headers, with_namespace=scope.all_namespaces, with_kind=len(chosen) > 1
    )
    if watch:
        if len(chosen) != 1:
            raise click.UsageError("--watch follows one kind")
        _watch(context, chosen[0], scope, selector, listing_format)
    else:
        _show_listed(context, chosen, scope, selector, listing_format)


def _show_listed(
    context: CommandContext,
    kinds: Sequence[AnyKind],
    scope: NamespaceScope,
    selector: Selector,
    listing_format: ListingFormat,
) -> None:
    async def read(driver: StoreDriver) -> list[tuple[AnyKind, list[Document]]]:
        found = []
        for kind in kinds:
            namespace = scope.for_list(kind, context.default_project(kind))
            listing = await driver.list(kind, namespace, labels=selector.labels, fields=selector.fields)
            found.append((kind, sorted(listing.items, key=lambda each: (each.namespace, each.name))))
        return found

    found = context.run(read)
    if listing_format.output_format in ("json", "yaml"):
        click.echo(
            output.dump(
                list_object([each for _, documents in found for each in documents]), listing_format.output_format
            )
        )
        return
    _print_tables(found, listing_format)
    for kind, documents in found:
        if not documents:
            context.note(_nothing(kind, scope, selector, context.default_project(kind)))


def _show_named(
    context: CommandContext, refs: Sequence[ObjectRef], scope: NamespaceScope, listing_format: ListingFormat
) -> None:
    missing: list[NotFound] = []

    async def read(driver: StoreDriver) -> list[tuple[AnyKind, list[Document]]]:
        found: dict[str, tuple[AnyKind, list[Document]]] = {}
        for kind, name in refs:
            try:
                namespace = scope.for_object(kind, context.default_project(kind))
                document = await driver.get(kind, name, namespace)
            except NotFound as exc:
                missing.append(exc)
                continue
            found.setdefault(kind.name, (kind, []))[1].append(document)
        return list(found.values())

    found = context.run(read)
    if listing_format.output_format in ("json", "yaml"):
        documents = [each for _, group in found for each in group]
        if documents:
            data = documents[0].data if len(refs) == 1 else list_object(documents)
            click.echo(output.dump(data, listing_format.output_format))
    else:
        _print_tables(found, listing_format)
    for error in missing[:-1]:
        output.print_error(error)
    if missing:
        raise missing[-1]


def _print_tables(found: Sequence[tuple[AnyKind, list[Document]]], listing_format: ListingFormat) -> None:
    now = time.time()
    full = [(kind, documents) for kind, documents in found if documents]
    for index, (kind, documents) in enumerate(full):
        if listing_format.output_format == "name":
            click.echo("\n".join(f"{kind.singular}/{document.name}" for document in documents))
            continue
        if index:
            click.echo()
        click.echo(listing_format.table(kind, documents, now))


def _watch(
    context: CommandContext, kind: AnyKind, scope: NamespaceScope, selector: Selector, listing_format: ListingFormat
) -> None:
    namespace = scope.for_list(kind, context.default_project(kind))
    sizes: list[int] = []

    def first(documents: list[Document]) -> None:
        if listing_format.output_format not in ("table", "wide"):
            for document in documents:
                change(document, False)
            return
        titles = [column.title.upper() for column in listing_format.columns(kind)]
        rows = [listing_format.row(kind, document.data, time.time()) for document in documents]
        sizes[:] = output.column_widths([titles, *rows])
        if listing_format.headers:
            click.echo(output.format_row(titles, sizes))
        for row in rows:
            click.echo(output.format_row(row, sizes, colour=output.use_colour()))

    def change(document: Document, gone: bool) -> None:
        mark = "   (deleted)" if gone else ""
        if listing_format.output_format == "name":
            click.echo(f"{kind.singular}/{document.name}{mark}")
        elif listing_format.output_format in ("json", "yaml"):
            click.echo(
                document.raw.decode()
                if listing_format.output_format == "json"
                else "---\n" + output.as_yaml(document.data)
            )
        else:
            row = listing_format.row(kind, document.data, time.time())
            click.echo(output.format_row(row, sizes, colour=output.use_colour()) + mark)

    context.run(
        lambda driver: follow(
            driver,
            kind,
            namespace,
            labels=selector.labels,
            fields=selector.fields,
            first=first,
            change=change,
            note=context.note,
        )
    )


def list_object(documents: Sequence[Document]) -> dict[str, Any]:
    """Several objects as one, as `apply` reads it back."""
    return {"apiVersion": "v1", "kind": "List", "items": [document.data for document in documents]}


def _nothing(kind: AnyKind, scope: NamespaceScope, selector: Selector, default_project: str) -> str:
    if selector.any:
        return f"No {kind.plural} match."
    where = ""
    if scope.namespace:
        where = f" in namespace {scope.namespace}"
    elif kind.namespaced and not scope.all_namespaces:
        where = f" in project {scope.project or default_project}"
    return f"No {kind.plural}{where} yet. Make one with: {_FIRST.get(kind.name, 'aliquot apply -f FILE')}"
