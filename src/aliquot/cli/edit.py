"""`edit`: opens an object as YAML in the user's editor and writes it back, unless it has changed in the meantime.

When the edited text cannot be applied, it is kept in a file and the error names the file.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import click

from aliquot.api import Json
from aliquot.cli import output
from aliquot.cli.context import NamespaceScope, command_context, namespace_options
from aliquot.cli.manifests import Manifest, Source, parse_manifests, validate
from aliquot.cli.object_refs import ObjectRef, object_arguments, parse_refs, single_ref
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import Conflict, Invalid, PlatformError
from aliquot.store.driver import Document

_HEADER = "# Change what you like and save; leave it unchanged to do nothing. The status is not yours to edit.\n"


@click.command(cls=GlobalOptionsCommand)
@object_arguments()
@namespace_options()
def edit(kind: str, names: tuple[str, ...], scope: NamespaceScope) -> int:
    """Change an object in your editor ($VISUAL, else $EDITOR, else vi)."""
    context = command_context()
    ref = single_ref(parse_refs(kind, names))
    namespace = scope.for_object(ref.kind, context.default_project(ref.kind))
    before = context.run(lambda driver: driver.get(ref.kind, ref.name, namespace))
    text = _HEADER + output.as_yaml(editable(before.data)) + "\n"
    path = _write_temp_file(ref, text)
    after = _edited(path)
    if after == text or not after.strip():
        path.unlink(missing_ok=True)
        click.echo(f"{ref} unchanged")
        return 0
    try:
        changed = changed_document(ref, before, after)
        written = context.run(lambda driver: driver.update(ref.kind, changed))
    except PlatformError as exc:
        raise _with_file_hint(exc, ref, path) from exc
    path.unlink(missing_ok=True)
    click.echo(f"{ref} " + ("configured" if written.version != before.version else "unchanged"))
    return 0


def editable(data: Json) -> Json:
    """The object without the fields that only the platform writes."""
    kept = ("name", "namespace", "labels", "annotations", "finalizers")
    metadata = {key: value for key, value in data["metadata"].items() if key in kept}
    rest = {key: value for key, value in data.items() if key not in ("metadata", "status")}
    return {"apiVersion": rest.pop("apiVersion", ""), "kind": rest.pop("kind", ""), "metadata": metadata, **rest}


def changed_document(ref: ObjectRef, before: Document, text: str) -> Document:
    """The edited text as an object that replaces the one that was read."""
    manifests = parse_manifests(Source("your text", text))
    if len(manifests) != 1:
        raise Invalid(f"one object expected, not {len(manifests)}")
    checked = validate(Manifest("your text", 1, manifests[0].data))
    document = checked.document
    if (checked.kind.name, document.name, document.namespace) != (ref.kind.name, before.name, before.namespace):
        raise Invalid("kind, name and namespace cannot be changed", hint="delete the object and create another")
    old = before.metadata
    kept = {key: old[key] for key in ("uid", "resourceVersion", "ownerReferences") if key in old}
    return Document({**document.data, "metadata": {**document.metadata, **kept}})


def _write_temp_file(ref: ObjectRef, text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix=f"aliquot-{ref.kind.singular}-{ref.name[:60]}-", suffix=".yaml")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
    return Path(name)


def _edited(path: Path) -> str:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        status = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as exc:
        path.unlink(missing_ok=True)
        raise Invalid(f"cannot start editor {editor!r}: {exc}", hint="set EDITOR") from exc
    if status != 0:
        raise Invalid(
            f"editor {editor!r} ended with status {status}", hint=f"nothing was changed; your text is in {path}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise Invalid(f"cannot read {path} back: {exc}") from exc


def _with_file_hint(error: PlatformError, ref: ObjectRef, path: Path) -> PlatformError:
    """The same error, with the path of the edited text in its hint."""
    if isinstance(error, Conflict):
        next_step = f"{ref} has changed in the meantime: edit it again; your text is in {path}"
    else:
        next_step = f"your text is in {path}; correct it and run `aliquot apply -f {path}`"
    return type(error)(
        error.message, hint=f"{error.hint}; {next_step}" if error.hint else next_step, faults=error.faults
    )
