"""`apply`: create or change objects from files.

All files are validated before the first request, so an invalid file changes nothing. An existing object is changed
with a merge patch: fields that the file does not mention keep their value, and `null` removes a field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from aliquot.api import Json
from aliquot.cli import output
from aliquot.cli.context import NamespaceScope, command_context, namespace_options
from aliquot.cli.manifests import ValidManifest, parse_manifests, read_sources, validate_all
from aliquot.cli.object_refs import ObjectRef
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.projects import wait_until_ready
from aliquot.errors import Exists, Invalid, NotFound, PlatformError
from aliquot.labels import namespace_of
from aliquot.store.driver import StoreDriver
from aliquot.store.object_rules import merged

Outcome = Literal["created", "configured", "unchanged"]


@click.command(cls=GlobalOptionsCommand)
@click.option("-f", "--filename", "paths", multiple=True, required=True, metavar="FILE|DIR|-", help="Files to apply.")
@click.option("--dry-run", is_flag=True, help="Validate the files and compare, but change nothing.")
@namespace_options()
def apply(paths: tuple[str, ...], dry_run: bool, scope: NamespaceScope) -> int:
    """Create or change objects from files: JSON or YAML, with one or several documents, or a List."""
    context = command_context()
    manifests = [manifest for source in read_sources(paths) for manifest in parse_manifests(source)]
    if not manifests:
        raise Invalid("no objects in " + ", ".join(paths))
    default = scope.project or context.settings.project
    try:
        objects = validate_all(manifests, scope.namespace or (namespace_of(default) if default else ""))
    except Invalid as exc:
        for fault in exc.faults[:-1]:
            output.print_error(Invalid(str(fault)))
        raise Invalid(str(exc.faults[-1]), hint=exc.hint) from None
    failed = False

    async def apply_all(driver: StoreDriver) -> None:
        nonlocal failed
        for manifest in objects:
            label = f"{manifest.kind.singular}/{manifest.document.name}"
            try:
                outcome = await apply_object(driver, manifest, dry_run=dry_run)
            except PlatformError as exc:
                # The other objects are valid too, so they are applied all the same.
                failed = True
                output.print_error(type(exc)(f"{label}: {exc.message}", hint=exc.hint))
                continue
            click.echo(f"{label} {outcome}" + (" (dry run)" if dry_run else ""))
            if outcome == "created" and not dry_run and _contains_others(manifest, objects):
                try:
                    ref = ObjectRef(manifest.kind, manifest.document.name)
                    await wait_until_ready(context, driver, ref, (await driver.get(*ref)).uid)
                except PlatformError as exc:
                    failed = True
                    output.print_error(exc)

    context.run(apply_all)
    return 1 if failed else 0


def _contains_others(manifest: ValidManifest, objects: Sequence[ValidManifest]) -> bool:
    """Whether this is a project that other objects of the call belong to: they need its namespace first."""
    if manifest.kind.name != "Project":
        return False
    namespace = (manifest.document.data.get("spec") or {}).get("namespace") or namespace_of(manifest.document.name)
    return any(each.kind.namespaced and each.document.namespace == namespace for each in objects)


async def apply_object(driver: StoreDriver, manifest: ValidManifest, *, dry_run: bool = False) -> Outcome:
    """Create the object, or patch the fields that differ."""
    kind, document = manifest.kind, manifest.document
    try:
        current = await driver.get(kind, document.name, document.namespace)
    except NotFound:
        if not dry_run:
            try:
                await driver.create(kind, document)
            except Exists:
                return await apply_object(driver, manifest)  # it was created by another client in the meantime
        return "created"
    patch = merge_patch(document.data, has_status=kind.has_status)
    if merged(current.data, patch) == current.data:
        return "unchanged"
    if dry_run:
        return "configured"
    after = await driver.patch(kind, document.name, document.namespace, patch)
    return "unchanged" if after.version == current.version else "configured"


def merge_patch(data: Json, *, has_status: bool) -> Json:
    """A manifest as a merge patch: without kind, name and namespace, and without the status."""
    patch = {key: value for key, value in data.items() if key not in ("apiVersion", "kind", "metadata")}
    if has_status:
        patch.pop("status", None)
    metadata = {key: value for key, value in data["metadata"].items() if key not in ("name", "namespace")}
    return {**patch, "metadata": metadata} if metadata else patch
