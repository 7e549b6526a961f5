"""References by name: an object that is named must exist, and cannot be deleted while it is named."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.admission.field_paths import value_at
from aliquot.api import KINDS, Json
from aliquot.errors import Conflict, Fault, Invalid, NotFound
from aliquot.store.driver import AnyKind, Document, StoreDriver


@dataclass(frozen=True, slots=True)
class Reference:
    """A field with the name of an object, or with a map or list of names."""

    referenced: str  # kind of the named object
    referring: str  # kind of the object with the field
    path: tuple[str, ...]
    # True: the named object must exist when the reference is written.
    must_exist: bool = False
    # Only objects whose `kind` beside the name is one of these refer to the kind; any when empty.
    kinds: tuple[str, ...] = ()

    def names(self, document: Document, name: str) -> bool:
        value = value_at(document.data, self.path)
        if self.kinds and value_at(document.data, (*self.path[:-1], "kind")) not in self.kinds:
            return False
        return name in value if isinstance(value, (dict, list)) else bool(value == name)


# A quota may name a node pool that is created later. An access rule must not outlive the object it names: it would
# apply to the next object of that name.
REFERENCES = (
    Reference("Department", "Project", ("spec", "department"), must_exist=True),
    Reference("NodePool", "Project", ("spec", "pools")),
    Reference("NodePool", "Department", ("spec", "pools")),
    Reference("NodePool", "SchedulingPolicy", ("spec", "pools")),
    Reference("User", "Token", ("spec", "user"), must_exist=True),
    Reference("User", "AccessRule", ("spec", "subject", "name"), kinds=("user", "application")),
    Reference("Project", "AccessRule", ("spec", "scope", "name"), kinds=("project",)),
    Reference("Department", "AccessRule", ("spec", "scope", "name"), kinds=("department",)),
)
# Objects that are never deleted, with the reason.
UNDELETABLE = {
    ("NodePool", "default"): "every node without another pool is in it",
    ("Department", "default"): "every project without another department is in it",
}
_MAX_NAMES_SHOWN = 5  # in an error message


async def check_references(driver: StoreDriver, kind: AnyKind, data: Json) -> None:
    """`Invalid` when a field of the object names an object that must exist and does not."""
    for reference in REFERENCES:
        name = value_at(data, reference.path) if reference.must_exist and reference.referring == kind.name else None
        if not name:
            continue
        try:
            await driver.get(KINDS.named(reference.referenced), str(name))
        except NotFound:
            fault = Fault(".".join(reference.path), f"{reference.referenced.lower()} {name!r} does not exist")
            raise Invalid.because(kind.singular, [fault], hint="create it first") from None


async def check_not_referenced(driver: StoreDriver, kind: AnyKind, name: str) -> None:
    """`Conflict` when the object cannot be deleted: others name it, or the platform needs it."""
    if reason := UNDELETABLE.get((kind.name, name)):
        raise Conflict(f"{kind.singular} {name!r} cannot be deleted: {reason}")
    for reference in REFERENCES:
        if reference.referenced == kind.name:
            listing = await driver.list(KINDS.named(reference.referring))
            users = [document.name for document in listing.items if reference.names(document, name)]
            refuse_while_used(kind, name, reference.referring, users)


def refuse_while_used(kind: AnyKind, name: str, referring: str, users: list[str]) -> None:
    """`Conflict` with the names of the objects that use it, if there are any."""
    if not users:
        return
    hidden = len(users) - _MAX_NAMES_SHOWN
    shown = ", ".join(users[:_MAX_NAMES_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")
    word = KINDS.named(referring).plural if len(users) > 1 else KINDS.named(referring).singular
    raise Conflict(f"{kind.singular} {name!r} is used by {word} {shown}", hint=f"delete or change {shown} first")
