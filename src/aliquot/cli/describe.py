"""`describe`: everything about one object as text: metadata, spec, status, conditions and events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from aliquot import units
from aliquot.api import KINDS, Json
from aliquot.cli import output
from aliquot.cli.context import NamespaceScope, command_context, namespace_options
from aliquot.cli.object_refs import ObjectRef, object_arguments, parse_refs, single_ref
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import PlatformError
from aliquot.labels import WORKLOAD_UID
from aliquot.store.driver import Document, StoreDriver

_PRINTED_SEPARATELY = ("apiVersion", "kind", "metadata")
_MAX_EVENTS = 50
_ABBREVIATIONS = ("gpu", "cpu", "id", "uid", "ip", "url")
_TIME_SUFFIXES = ("Timestamp", "Time", "time")
_TIME_FIELDS = ("lastUsed", "lastLogin", "expires", "started", "finished", "created", "deleted")


@click.command(cls=GlobalOptionsCommand)
@object_arguments()
@click.option(
    "-o",
    "--output",
    "output_format",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    help="Output format.",
)
@click.option("--json", "output_format", flag_value="json", help="The same as -o json.")
@click.option("--yaml", "output_format", flag_value="yaml", help="The same as -o yaml.")
@namespace_options()
def describe(kind: str, names: tuple[str, ...], output_format: str, scope: NamespaceScope) -> int:
    """Show everything about one object. Times are in your time zone."""
    context = command_context()
    ref = single_ref(parse_refs(kind, names))
    namespace = scope.for_object(ref.kind, context.default_project(ref.kind))

    async def read(driver: StoreDriver) -> tuple[Document, list[Json]]:
        document = await driver.get(ref.kind, ref.name, namespace)
        return document, (await events_of(driver, document) if output_format == "text" else [])

    document, events = context.run(read)
    text = "\n".join(description_lines(ref, document.data, events, time.time()))
    click.echo(text if output_format == "text" else output.dump(document.data, output_format))
    return 0


async def events_of(driver: StoreDriver, document: Document) -> list[Json]:
    """The events of an object, oldest first; for a workload also those of its pods, even of deleted ones.

    Empty when events cannot be read.
    """
    kind, namespace = KINDS.named("events"), document.namespace or None
    try:
        events = (await driver.list(kind, namespace, fields=f"involvedObject.uid={document.uid}")).items
        events += (await driver.list(kind, namespace, labels=f"{WORKLOAD_UID}={document.uid}")).items
    except PlatformError:
        return []  # a description without events is better than none
    return sort_events({event.name: event.data for event in events}.values())[-_MAX_EVENTS:]


def sort_events(events: Iterable[Json]) -> list[Json]:
    """The events, oldest first."""
    return sorted(events, key=lambda event: units.timestamp(_time_of(event)))


def description_lines(ref: ObjectRef, data: Json, events: Sequence[Json], now: float) -> Iterator[str]:
    metadata = data["metadata"]
    pairs = [("Name", metadata["name"]), ("Kind", ref.kind.name)]
    if metadata.get("namespace"):
        pairs.append(("Namespace", metadata["namespace"]))
    pairs += [
        ("Labels", output.cell(metadata.get("labels"))),
        ("Annotations", output.cell(metadata.get("annotations"))),
    ]
    pairs.append(("Created", _time(metadata.get("creationTimestamp"), now)))
    if metadata.get("deletionTimestamp"):
        pairs.append(("Deleting", _time(metadata["deletionTimestamp"], now)))
        pairs.append(("Waits for", output.cell(metadata.get("finalizers"))))
    size = max(len(name) for name, _ in pairs) + 1
    yield from (f"{name + ':':<{size}}  {output.printable(str(value))}" for name, value in pairs)
    for name, part in data.items():
        if name not in _PRINTED_SEPARATELY and part not in (None, {}, []):
            yield f"{field_title(name)}:"
            yield from value_lines(part, now, 1)
    yield from _events(events, now)


def value_lines(value: Any, now: float, depth: int, name: str = "") -> Iterator[str]:
    """Nested JSON as indented lines."""
    pad = "  " * depth
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _field_lines(key, each, now, depth)
    elif isinstance(value, list):
        if value and all(isinstance(each, dict) and "type" in each and "status" in each for each in value):
            yield from (pad + text for text in _conditions(value, now).splitlines())
            return
        for each in value:
            inner = list(value_lines(each, now, depth + 1))
            yield f"{pad}- {inner[0].strip()}" if inner else f"{pad}-"
            yield from inner[1:]
    else:
        yield pad + _leaf(name, value, now)


def _field_lines(key: str, value: Any, now: float, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(value, list) and value and not any(isinstance(each, (dict, list)) for each in value):
        yield f"{pad}{field_title(key)}: {output.cell(value)}"
    elif isinstance(value, (dict, list)):
        yield f"{pad}{field_title(key)}:" + ("" if value else f" {output.EMPTY}")
        yield from value_lines(value, now, depth + 1)
    elif isinstance(value, str) and "\n" in value:
        yield f"{pad}{field_title(key)}:"
        yield from (f"{pad}  {output.printable(text)}" for text in value.splitlines())
    else:
        yield f"{pad}{field_title(key)}: {_leaf(key, value, now)}"


def field_title(name: str) -> str:
    """overQuotaWeight -> Over quota weight; a key that is not a field name stays as it is."""
    if not name.isidentifier():
        return name
    words = "".join(f" {char.lower()}" if char.isupper() else char for char in name).split()
    text = " ".join(word.upper() if word in _ABBREVIATIONS else word for word in words)
    return text[:1].upper() + text[1:]


def _leaf(name: str, value: Any, now: float) -> str:
    if isinstance(value, str) and (name.endswith(_TIME_SUFFIXES) or name in _TIME_FIELDS):
        return _time(value, now)
    return output.cell(value)


def _time(moment: Any, now: float) -> str:
    if not moment:
        return output.EMPTY
    age_text = output.age_or_countdown(moment, now)
    return f"{output.local_time(moment)} ({age_text if age_text.startswith('in ') else age_text + ' ago'})"


def _conditions(conditions: Sequence[Json], now: float) -> str:
    rows = [
        [output.cell(each.get(key)) for key in ("type", "status", "reason")]
        + [output.age_of(each.get("lastTransitionTime"), now), output.cell(each.get("message"))]
        for each in conditions
    ]
    return output.table(["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], rows)


def _events(events: Sequence[Json], now: float) -> Iterator[str]:
    if not events:
        yield "Events: none"
        return
    yield "Events:"
    rows = [
        [
            output.cell(event.get("type")),
            output.cell(event.get("reason")),
            output.age_of(_time_of(event), now),
            output.cell(event.get("message")) + count_suffix(event),
        ]
        for event in events
    ]
    table = output.table(["TYPE", "REASON", "AGE", "MESSAGE"], rows)
    yield from ("  " + text for text in table.splitlines())


def count_suffix(event: Json) -> str:
    """` (x3)` for an event that occurred three times; "" for one that occurred once."""
    count = event.get("count") or 1
    return f" (x{count})" if count > 1 else ""


def _time_of(event: Json) -> Any:
    names = ("lastTimestamp", "eventTime", "firstTimestamp")
    return next((event[name] for name in names if event.get(name)), event["metadata"].get("creationTimestamp"))
