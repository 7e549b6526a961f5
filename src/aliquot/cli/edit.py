"""`edit`: an object as YAML in the user's editor, written back if nobody else was faster.

Whatever goes wrong after the user began to type, the text is kept in a file and the error says where.
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
from aliquot.cli.manifests import Manifest, Source, check_one, read
from aliquot.cli.program import Verb
from aliquot.cli.session import Place, place_options, session
from aliquot.cli.targets import Target, object_arguments, only, targets
from aliquot.errors import Conflict, Invalid, PlatformError
from aliquot.store.driver import Document

_HEAD = "# Change what you like and save; leave it unchanged to do nothing. The status is not yours to edit.\n"


@click.command(cls=Verb)
@object_arguments()
@place_options()
def edit(kind: str, names: tuple[str, ...], place: Place) -> int:
    """Change an object in your editor ($VISUAL, else $EDITOR, else vi)."""
    here = session()
    target = only(targets(kind, names))
    namespace = place.one(target.kind, here.settings.project if target.kind.namespaced else "")
    before = here.run(lambda driver: driver.get(target.kind, target.name, namespace))
    text = _HEAD + output.as_yaml(editable(before.data)) + "\n"
    path = _scratch(target, text)
    after = _edited(path)
    if after == text or not after.strip():
        path.unlink(missing_ok=True)
        click.echo(f"{target} unchanged")
        return 0
    try:
        changed = changed_document(target, before, after)
        written = here.run(lambda driver: driver.update(target.kind, changed))
    except PlatformError as exc:
        raise _kept(exc, target, path) from exc
    path.unlink(missing_ok=True)
    click.echo(f"{target} " + ("configured" if written.version != before.version else "unchanged"))
    return 0


def editable(data: Json) -> Json:
    """The object without what only the platform writes."""
    marks = ("name", "namespace", "labels", "annotations", "finalizers")
    metadata = {key: value for key, value in data["metadata"].items() if key in marks}
    rest = {key: value for key, value in data.items() if key not in ("metadata", "status")}
    return {"apiVersion": rest.pop("apiVersion", ""), "kind": rest.pop("kind", ""), "metadata": metadata, **rest}


def changed_document(target: Target, before: Document, text: str) -> Document:
    """The user's text as an object to write over the one that was read."""
    manifests = read(Source("your text", text))
    if len(manifests) != 1:
        raise Invalid(f"one object expected, not {len(manifests)}")
    checked = check_one(Manifest("your text", 1, manifests[0].data))
    document = checked.document
    if (checked.kind.name, document.name, document.namespace) != (target.kind.name, before.name, before.namespace):
        raise Invalid("kind, name and namespace cannot be changed", hint="delete the object and create another")
    old = before.metadata
    kept = {key: old[key] for key in ("uid", "resourceVersion", "ownerReferences") if key in old}
    return Document({**document.data, "metadata": {**document.metadata, **kept}})


def _scratch(target: Target, text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix=f"aliquot-{target.kind.singular}-{target.name[:60]}-", suffix=".yaml")
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


def _kept(error: PlatformError, target: Target, path: Path) -> PlatformError:
    """The same error, with the place of the user's text."""
    if isinstance(error, Conflict):
        next_step = f"somebody changed {target} meanwhile: edit it again; your text is in {path}"
    else:
        next_step = f"your text is in {path}; correct it and run `aliquot apply -f {path}`"
    return type(error)(
        error.message, hint=f"{error.hint}; {next_step}" if error.hint else next_step, faults=error.faults
    )
