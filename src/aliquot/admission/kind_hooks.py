"""`KindHooks`: the rules of a single kind that need code. `hooks.HOOKS` says which kind has which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from aliquot.api import Json
from aliquot.auth.tokens import Secret
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.informer import Informers


@dataclass(frozen=True, slots=True)
class PreparedObject:
    """A new object after the hooks of its kind filled it in; not validated yet."""

    data: Json
    # What the response to the create has besides the stored object (`Kind.create_response_fields`).
    response_fields: Mapping[str, Secret] = field(default_factory=dict)


class KindHooks:
    """Hooks that do nothing. A kind with rules of its own overrides those it needs."""

    # True: `validate` also needs the stored object on update.
    validates_updates: ClassVar[bool] = False

    def __init__(self, driver: StoreDriver, informers: Informers) -> None:
        self._driver = driver

    async def prepare_create(self, data: Json, namespace: str, subject: str) -> PreparedObject:
        """Fills in what the client left out. `data` is as the client sent it; `subject` is the authenticated user."""
        return PreparedObject(data)

    def validate(self, document: Document, old: Document | None = None) -> None:
        """Refuses a validated object; `old` is the stored one on update."""

    async def validate_delete(self, name: str) -> None:
        """Refuses the deletion of an object that nothing references by name."""
