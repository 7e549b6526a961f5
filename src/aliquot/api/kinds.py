"""The table of kinds: what exists, how it is called, and how it behaves in a store.

A `Kind` is all that stores, server, CLI and the Kubernetes custom resources need to know about a type, so that each of
them is one piece of code over this table and a new kind is one more row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from aliquot.errors import Invalid
from aliquot.labels import API_GROUP

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a listing, here and in `kubectl get`."""

    title: str
    path: str  # where in the JSON, as a JSONPath such as ".spec.department"
    form: str = "string"  # string, integer, number, boolean or date
    wide: bool = False  # only with -o wide


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    name: str  # "Workload"
    type: type[T]
    plural: str  # "workloads", as in URLs
    singular: str = ""  # what people type; the lower-case name unless given
    aliases: tuple[str, ...] = ()  # other words people type; the first is kubectl's short name
    group: str = API_GROUP  # "" = Kubernetes' own
    version: str = "v1"
    namespaced: bool = False
    # True: spec and status are written apart, and neither write touches the other part.
    has_status: bool = True
    # True: a create may bring its status along (a node registers itself with it).
    status_at_birth: bool = False
    # True: a delete gives the object time to stop (pods).
    graceful: bool = False
    # What field selectors may name, besides metadata.name and metadata.namespace.
    selectable: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    # (path, CEL expression, message) of rules that a schema cannot say.
    rules: tuple[tuple[str, str, str], ...] = field(default=())
    # True: names must also be those of PRJ-26: a letter first, then letters, digits and hyphens.
    letter_first: bool = False
    # True: names must be RFC 1123 labels (no dots), because namespaces, pods or labels are made from them.
    label_names: bool = False
    name_length: int = 253

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def word(self) -> str:
        return self.singular or self.name.lower()

    @property
    def words(self) -> tuple[str, ...]:
        """Everything people may type for it."""
        return (self.name, self.plural, self.word, *self.aliases)

    @property
    def ours(self) -> bool:
        return self.group == API_GROUP


class Kinds:
    """All kinds, found by type or by any word a user may type."""

    def __init__(self, *kinds: Kind[Any]) -> None:
        self._kinds = kinds
        self._by_type = {kind.type: kind for kind in kinds}
        self._by_word = {word.lower(): kind for kind in kinds for word in kind.words}

    def __iter__(self) -> Iterator[Kind[Any]]:
        return iter(self._kinds)

    def of(self, cls: type[T]) -> Kind[T]:
        return self._by_type[cls]

    def named(self, word: str) -> Kind[Any]:
        """The kind a user means; `Invalid` lists what there is."""
        kind = self._by_word.get(word.lower())
        if kind is None:
            known = ", ".join(kind.plural for kind in self._kinds)
            raise Invalid(f"unknown kind {word!r}", hint=f"one of: {known}")
        return kind

    def declared(self, api_version: object, kind: object) -> Kind[Any]:
        """The kind that a manifest's `apiVersion` and `kind` name."""
        found = self._by_word.get(str(kind).lower())
        if found is None or found.name != kind or found.api_version != api_version:
            raise Invalid(
                f"no kind {kind!r} in apiVersion {api_version!r}",
                hint="ours are "
                + ", ".join(k.name for k in self._kinds if k.ours)
                + f" in {API_GROUP}/v1; `aliquot get --help` lists all",
            )
        return found
