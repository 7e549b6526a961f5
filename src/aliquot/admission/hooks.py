"""The table of hooks: which kinds have rules that the table of kinds (`aliquot.api.kind_table`) cannot express."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aliquot.admission.kind_hooks import KindHooks
from aliquot.admission.project_hooks import ProjectHooks
from aliquot.admission.token_hooks import TokenHooks
from aliquot.admission.workload_admission import WorkloadAdmission
from aliquot.store.driver import AnyKind, StoreDriver
from aliquot.store.informer import Informers

HOOKS: Final[Mapping[str, Callable[[StoreDriver, Informers], KindHooks]]] = {
    "Workload": WorkloadAdmission,
    "Token": TokenHooks,
    "Project": ProjectHooks,
}


class Hooks:
    """The hooks of every kind, for one server."""

    def __init__(self, driver: StoreDriver, informers: Informers) -> None:
        self._default = KindHooks(driver, informers)
        self._by_kind = {name: hooks(driver, informers) for name, hooks in HOOKS.items()}

    def of(self, kind: AnyKind) -> KindHooks:
        return self._by_kind.get(kind.name, self._default)
