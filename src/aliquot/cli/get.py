"""`get`: objects as a table, as JSON or YAML, or by name only; once, or for as long as they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from aliquot.api import KINDS, Column
from aliquot.cli import output
from aliquot.cli.program import Verb
from aliquot.cli.session import Place, Session, place_options, session
from aliquot.cli.targets import Target, complete_kinds, complete_names, targets
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
class View:
    """How a listing is to be shown."""

    form: str = "table"
    headers: bool = True
    with_namespace: bool = False
    with_kind: bool = False

    def columns(self, kind: AnyKind) -> list[Column]:
        shown = [column for column in kind.columns if self.form == "wide" or not column.wide]
        own = {column.title.lower() for column in shown}
        first = [Column("Namespace", ".metadata.namespace")] if self.with_namespace and kind.namespaced else []
        first += [] if "name" in own else [Column("Name", ".metadata.name")]
        last = [] if "age" in own else [Column("Age", ".metadata.creationTimestamp", "date")]
        return [*first, *shown, *last]

    def row(self, kind: AnyKind, data: Any, now: float) -> list[str]:
        return [self._cell(kind, column, data, now) for column in self.columns(kind)]

    def _cell(self, kind: AnyKind, column: Column, data: Any, now: float) -> str:
        value = output.pick(data, column.path)
        if column.value_type == "date":
            return output.age_of(value, now) if "creation" in column.path else output.when(value, now)
        text = output.cell(value)
        return f"{kind.singular}/{text}" if self.with_kind and column.path == ".metadata.name" else text

    def table(self, kind: AnyKind, documents: Sequence[Document], now: float) -> str:
        titles = [column.title.upper() for column in self.columns(kind)]
        rows = [self.row(kind, document.data, now) for document in documents]
        return output.table(titles, rows, headers=self.headers)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """-o, --json and --yaml, handed to the command as `form`."""
    command = click.option("--no-headers", is_flag=True, help="Leave the title line out.")(command)
    for form in ("table", "yaml", "json"):
        command = click.option(f"--{form}", "form", flag_value=form, help=f"The same as -o {form}.")(command)
    forms = click.Choice(["table", "wide", "json", "yaml", "name"])
    return click.option("-o", "--output", "form", type=forms, default="table", help="How to print it.")(command)


def _epilog() -> str:
    return "Kinds: " + ", ".join(
        f"{kind.plural} ({', '.join(kind.aliases)})" if kind.aliases else kind.plural for kind in KINDS
    )


@click.command(cls=Verb, epilog=_epilog())
@click.argument("kinds", metavar="KIND[,KIND]", shell_complete=complete_kinds)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names())
@click.option("-l", "--selector", "labels", default="", metavar="k=v,...", help="Only those with these labels.")
@click.option("--field-selector", "fields", default="", metavar="path=v,...", help="Only those with these fields.")
@click.option("-w", "--watch", is_flag=True, help="Go on and show every change.")
@output_options
@place_options(everywhere=True)
def get(
    kinds: str, names: tuple[str, ...], labels: str, fields: str, watch: bool, form: str, no_headers: bool, place: Place
) -> int:
    """List objects of a kind, or show some by name."""
    show(session(), kinds, names, place, Query(labels, fields), form, watch=watch, headers=not no_headers)
    return 0


@click.command(cls=Verb)
@click.argument("kinds", metavar="KIND", shell_complete=complete_kinds)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names())
@output_options
@place_options(everywhere=True)
@click.pass_context
def list_(ctx: click.Context, kinds: str, names: tuple[str, ...], form: str, no_headers: bool, place: Place) -> int:
    """List objects of a kind."""
    from aliquot.cli.projects import list_queues

    kind = KINDS.named(kinds)
    if kind.name in ("Project", "Department") and not names and form == "table":
        return list_queues(session(), kind, form, headers=not no_headers)
    show(session(), kinds, names, place, Query(), form, headers=not no_headers)
    return 0


@dataclass(frozen=True)
class Query:
    labels: str = ""
    fields: str = ""

    @property
    def any(self) -> bool:
        return bool(self.labels or self.fields)


def show(
    here: Session,
    kinds: str,
    names: Sequence[str],
    place: Place,
    query: Query,
    form: str,
    *,
    watch: bool = False,
    headers: bool = True,
) -> None:
    if names or "/" in kinds:
        if query.any:
            raise click.UsageError("give names or selectors, not both")
        wanted = targets(kinds, names)
        if watch:
            if len(wanted) != 1:
                raise click.UsageError("--watch follows one object or one kind")
            query = Query(fields=f"metadata.name={wanted[0].name}")
            _watch(here, wanted[0].kind, place, query, View(form, headers))
        else:
            _show_named(here, wanted, place, View(form, headers))
        return
    chosen = [KINDS.named(word) for word in kinds.split(",")]
    view = View(form, headers, with_namespace=place.everywhere, with_kind=len(chosen) > 1)
    if watch:
        if len(chosen) != 1:
            raise click.UsageError("--watch follows one kind")
        _watch(here, chosen[0], place, query, view)
    else:
        _show_listed(here, chosen, place, query, view)


def _show_listed(here: Session, kinds: Sequence[AnyKind], place: Place, query: Query, view: View) -> None:
    async def read(driver: StoreDriver) -> list[tuple[AnyKind, list[Document]]]:
        found = []
        for kind in kinds:
            namespace = place.many(kind, here.settings.project if kind.namespaced else "")
            listing = await driver.list(kind, namespace, labels=query.labels, fields=query.fields)
            found.append((kind, sorted(listing.items, key=lambda each: (each.namespace, each.name))))
        return found

    found = here.run(read)
    if view.form in ("json", "yaml"):
        click.echo(output.shown_as(as_list([each for _, documents in found for each in documents]), view.form))
        return
    _print_tables(found, view)
    for kind, documents in found:
        if not documents:
            here.note(_nothing(kind, place, query, here.settings.project if kind.namespaced else ""))


def _show_named(here: Session, wanted: Sequence[Target], place: Place, view: View) -> None:
    missing: list[NotFound] = []

    async def read(driver: StoreDriver) -> list[tuple[AnyKind, list[Document]]]:
        found: dict[str, tuple[AnyKind, list[Document]]] = {}
        for kind, name in wanted:
            try:
                namespace = place.one(kind, here.settings.project if kind.namespaced else "")
                document = await driver.get(kind, name, namespace)
            except NotFound as exc:
                missing.append(exc)
                continue
            found.setdefault(kind.name, (kind, []))[1].append(document)
        return list(found.values())

    found = here.run(read)
    if view.form in ("json", "yaml"):
        documents = [each for _, group in found for each in group]
        if documents:
            data = documents[0].data if len(wanted) == 1 else as_list(documents)
            click.echo(output.shown_as(data, view.form))
    else:
        _print_tables(found, view)
    for error in missing[:-1]:
        output.fail(error)
    if missing:
        raise missing[-1]


def _print_tables(found: Sequence[tuple[AnyKind, list[Document]]], view: View) -> None:
    now = time.time()
    full = [(kind, documents) for kind, documents in found if documents]
    for index, (kind, documents) in enumerate(full):
        if view.form == "name":
            click.echo("\n".join(f"{kind.singular}/{document.name}" for document in documents))
            continue
        if index:
            click.echo()
        click.echo(view.table(kind, documents, now))


def _watch(here: Session, kind: AnyKind, place: Place, query: Query, view: View) -> None:
    namespace = place.many(kind, here.settings.project if kind.namespaced else "")
    sizes: list[int] = []

    def first(documents: list[Document]) -> None:
        if view.form not in ("table", "wide"):
            for document in documents:
                change(document, False)
            return
        titles = [column.title.upper() for column in view.columns(kind)]
        rows = [view.row(kind, document.data, time.time()) for document in documents]
        sizes[:] = output.widths([titles, *rows])
        if view.headers:
            click.echo(output.line(titles, sizes))
        for row in rows:
            click.echo(output.line(row, sizes, colour=output.coloured()))

    def change(document: Document, gone: bool) -> None:
        mark = "   (deleted)" if gone else ""
        if view.form == "name":
            click.echo(f"{kind.singular}/{document.name}{mark}")
        elif view.form in ("json", "yaml"):
            click.echo(document.raw.decode() if view.form == "json" else "---\n" + output.as_yaml(document.data))
        else:
            row = view.row(kind, document.data, time.time())
            click.echo(output.line(row, sizes, colour=output.coloured()) + mark)

    here.run(
        lambda driver: follow(
            driver,
            kind,
            namespace,
            labels=query.labels,
            fields=query.fields,
            first=first,
            change=change,
            note=here.note,
        )
    )


def as_list(documents: Sequence[Document]) -> dict[str, Any]:
    """Several objects as one, as `apply` reads it back."""
    return {"apiVersion": "v1", "kind": "List", "items": [document.data for document in documents]}


def _nothing(kind: AnyKind, place: Place, query: Query, default_project: str) -> str:
    if query.any:
        return f"No {kind.plural} match."
    where = ""
    if place.namespace:
        where = f" in namespace {place.namespace}"
    elif kind.namespaced and not place.everywhere:
        where = f" in project {place.project or default_project}"
    return f"No {kind.plural}{where} yet. Make one with: {_FIRST.get(kind.name, 'aliquot apply -f FILE')}"
