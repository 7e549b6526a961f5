"""The first start: what must exist before anybody can do anything.

Level-triggered like every loop: each start makes what is missing and leaves the rest alone, so a start that was
killed half way is completed by the next one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from aliquot.api import (
    DEFAULT_POOL,
    AccessRule,
    Department,
    Metadata,
    Namespace,
    NodePool,
    Scope,
    Subject,
    Token,
    User,
)
from aliquot.api.access_rule import AccessRuleSpec
from aliquot.api.token import TokenSpec
from aliquot.auth import tokens
from aliquot.auth.tokens import Secret
from aliquot.errors import Exists, NotFound, Unauthenticated
from aliquot.labels import DEFAULT_DEPARTMENT, SYSTEM_NAMESPACE
from aliquot.store.typed_store import Store

ADMINISTRATOR = "admin"


class AdminTokenFile(Protocol):
    def read_token(self) -> str | None: ...

    def write_token(self, text: str) -> None: ...


class SharedAdminToken(Protocol):
    """Where several processes have the administrator's token in common."""

    async def read(self) -> str | None: ...

    async def write(self, text: str) -> bool:
        """False: somebody else wrote since it was read."""
        ...


async def bootstrap(store: Store, file: AdminTokenFile, shared: SharedAdminToken | None = None) -> None:
    """Namespace, default department and pool, and an administrator whose token is in the file."""
    wanted: list[Any] = [
        Namespace(metadata=Metadata(name=SYSTEM_NAMESPACE)),
        Department(metadata=Metadata(name=DEFAULT_DEPARTMENT)),
        NodePool(metadata=Metadata(name=DEFAULT_POOL)),
        User(metadata=Metadata(name=ADMINISTRATOR)),
        AccessRule(
            metadata=Metadata(name=ADMINISTRATOR),
            spec=AccessRuleSpec(
                subject=Subject(kind="user", name=ADMINISTRATOR),
                role="system-administrator",
                scope=Scope(kind="cluster"),
            ),
        ),
    ]
    for obj in wanted:
        await _ensure(store, obj)
    written = await asyncio.to_thread(file.read_token)
    text = written if shared is None else await shared.read()
    while text is None or not await _is_known(store, Secret(text)):
        text = await _issue(store, shared)
    if text != written:
        await asyncio.to_thread(file.write_token, text)


async def _ensure(store: Store, obj: Any) -> None:
    try:
        await store.get(type(obj), obj.metadata.name)
    except NotFound:
        try:
            await store.create(obj)
        except Exists:
            return  # another replica was faster


async def _is_known(store: Store, text: Secret) -> bool:
    try:
        name, secret = tokens.parse_token(text)
        token = await store.get(Token, name)
    except (NotFound, Unauthenticated):
        return False
    return tokens.secret_matches(secret, token.spec.hash)


async def _issue(store: Store, shared: SharedAdminToken | None) -> str | None:
    """A new token for the administrator, or the one that another replica has just issued. Stored before it is written
    down: a token that works nowhere is worse."""
    secret = tokens.new_secret()
    name = f"{ADMINISTRATOR}-{tokens.hash_of(secret)[:8]}"
    spec = TokenSpec(user=ADMINISTRATOR, hash=tokens.hash_of(secret), description="made by `aliquot up`")
    token = await store.create(Token(metadata=Metadata(name=name), spec=spec))
    text = tokens.format_token(name, secret).reveal()
    if shared is None or await shared.write(text):
        return text
    await store.delete(token)
    return await shared.read()
