"""Projects: one that still has workloads cannot be deleted."""

from __future__ import annotations

from aliquot.admission.field_paths import value_at
from aliquot.admission.kind_hooks import KindHooks
from aliquot.admission.references import refuse_while_used
from aliquot.api import KINDS, Namespace, Project, Workload
from aliquot.errors import NotFound
from aliquot.labels import namespace_of, project_of
from aliquot.store.driver import AnyKind


class ProjectHooks(KindHooks):
    async def validate_delete(self, name: str) -> None:
        kind: AnyKind = KINDS.of(Project)
        project = await self._driver.get(kind, name)
        namespace = value_at(project.data, ("spec", "namespace")) or namespace_of(name)
        if await self._owns_namespace(name, namespace):
            listing = await self._driver.list(KINDS.of(Workload), namespace)
            refuse_while_used(kind, name, "Workload", [document.name for document in listing.items])

    async def _owns_namespace(self, project: str, namespace: str) -> bool:
        """A project's spec may name any namespace. Workloads in another project's namespace do not keep it."""
        try:
            document = await self._driver.get(KINDS.of(Namespace), namespace)
        except NotFound:
            return False
        return project_of(document.metadata.get("labels") or {}) == project
