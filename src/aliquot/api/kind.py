"""`Kind`: everything stores, server, command line and custom resources need to know about one type.

Each of them is one piece of code over the table of kinds (`kind_table.py`), so a new kind is one more row there.
Facts about a kind are plain data here. Rules that need code are hooks in `aliquot.admission.hooks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from aliquot.errors import Invalid
from aliquot.labels import API_GROUP

T = TypeVar("T")

# What decides who may act on an object of a kind:
#   namespace          the project that owns the object's namespace; the cluster for an object without a namespace
#   department         the department that the object is
#   project            the project that the object is, and its department
#   project-namespace  the project that owns the namespace that the object is
AuthorizationScope = Literal["namespace", "department", "project", "project-namespace"]
FieldPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing, in `aliquot get` and in `kubectl get`."""

    title: str
    path: str  # JSONPath of the value, such as ".spec.department"
    value_type: str = "string"  # string, integer, number, boolean or date
    wide: bool = False  # shown only with -o wide


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    name: str  # "Workload"
    type: type[T]
    plural: str  # "workloads", as in URLs
    # Other names that users may type. The first is kubectl's short name.
    aliases: tuple[str, ...] = ()
    group: str = API_GROUP  # "" is Kubernetes' core group
    version: str = "v1"
    namespaced: bool = False
    # True: spec and status are written separately, and neither write changes the other part.
    has_status: bool = True
    # True: a create keeps the status it is given (a node registers itself with its status).
    status_on_create: bool = False
    # True: a delete gives the object time to stop (pods).
    graceful_deletion: bool = False
    # Fields that field selectors accept, besides metadata.name and metadata.namespace.
    selectable_fields: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    # (path, CEL expression, message) of rules that span fields, for the custom resource's schema.
    cel_rules: tuple[tuple[str, str, str], ...] = ()

    # --- names of objects
    # True: a letter comes first, then letters, digits and hyphens (PRJ-26).
    name_starts_with_letter: bool = False
    # True: names are RFC 1123 labels (no dots), because namespaces, pods or labels are made from them.
    name_is_label: bool = False
    max_name_length: int = 253

    # --- access
    authorization_scope: AuthorizationScope = "namespace"
    # True: objects in the system namespace apply to every project, so anyone who may view the kind in some project
    # may also view it there.
    shared_from_system_namespace: bool = False
    # Field of the spec with the user who owns the object. Owners may create, list, read and delete their own objects
    # without a role.
    owner_field: str = ""
    # Field of the spec in which the server records the authenticated user who created the object.
    submitter_field: str = ""
    # Fields that only the platform and its administrators may set or change.
    protected_fields: tuple[FieldPath, ...] = ()
    # Field of the spec that the server never returns, such as a hash.
    hidden_field: str = ""
    # Fields of the spec that the server sets on create, so that clients leave them out.
    generated_fields: tuple[str, ...] = ()
    # (name, description) of fields that only the response to a create has.
    create_response_fields: tuple[tuple[str, str], ...] = ()
    # True: callers authenticate with it, so a delete must take effect at once.
    is_credential: bool = False
    supports_dry_run: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.name.lower()

    @property
    def accepted_names(self) -> tuple[str, ...]:
        """Every name that users may type for it."""
        return (self.name, self.plural, self.singular, *self.aliases)

    @property
    def is_custom_resource(self) -> bool:
        """Whether the kind is Aliquot's own and not one of Kubernetes'."""
        return self.group == API_GROUP


class Kinds:
    """All kinds, by type and by every name that users may type."""

    def __init__(self, *kinds: Kind[Any]) -> None:
        self._kinds = kinds
        self._by_type = {kind.type: kind for kind in kinds}
        self._by_name = {name.lower(): kind for kind in kinds for name in kind.accepted_names}

    def __iter__(self) -> Iterator[Kind[Any]]:
        return iter(self._kinds)

    def of(self, cls: type[T]) -> Kind[T]:
        return self._by_type[cls]

    def named(self, name: str) -> Kind[Any]:
        """The kind a user means; `Invalid` lists the known kinds."""
        kind = self._by_name.get(name.lower())
        if kind is None:
            known = ", ".join(kind.plural for kind in self._kinds)
            raise Invalid(f"unknown kind {name!r}", hint=f"one of: {known}")
        return kind

    def declared(self, api_version: object, kind: object) -> Kind[Any]:
        """The kind that a manifest's `apiVersion` and `kind` name."""
        match = self._by_name.get(str(kind).lower())
        if match is None or match.name != kind or match.api_version != api_version:
            raise Invalid(
                f"no kind {kind!r} in apiVersion {api_version!r}",
                hint="ours are "
                + ", ".join(k.name for k in self._kinds if k.is_custom_resource)
                + f" in {API_GROUP}/v1; `aliquot get --help` lists all",
            )
        return match
