"""Creates the objects that must exist before anyone can use the platform, and the administrator's token.

Runs at every start, creates what is missing and leaves the rest alone. So the next start completes one that was killed
half way.
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
    """The administrator's token in the data folder of this machine."""

    def read_token(self) -> str | None: ...

    def write_token(self, text: str) -> None: ...


class SharedAdminToken(Protocol):
    """The administrator's token where several replicas share it."""

    async def read(self) -> str | None: ...

    async def write(self, text: str) -> bool:
        """False if another replica has written since the token was read; then nothing is written."""
        ...


async def bootstrap(store: Store, file: AdminTokenFile, shared: SharedAdminToken | None = None) -> None:
    """Ensures the system namespace, default department and default pool exist, and that the file has a valid token of
    the administrator."""
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
    in_file = await asyncio.to_thread(file.read_token)
    token = in_file if shared is None else await shared.read()
    while token is None or not await _is_valid(store, Secret(token)):
        token = await _issue(store, shared)
    if token != in_file:
        await asyncio.to_thread(file.write_token, token)


async def _ensure(store: Store, obj: Any) -> None:
    try:
        await store.get(type(obj), obj.metadata.name)
    except NotFound:
        try:
            await store.create(obj)
        except Exists:
            return  # another replica created it


async def _is_valid(store: Store, text: Secret) -> bool:
    try:
        name, secret = tokens.parse_token(text)
        token = await store.get(Token, name)
    except (NotFound, Unauthenticated):
        return False
    return tokens.secret_matches(secret, token.spec.hash)


async def _issue(store: Store, shared: SharedAdminToken | None) -> str | None:
    """A new token for the administrator, or the one that another replica has just issued. It is in the store before it
    is handed out, so that a token in a file always works."""
    secret = tokens.new_secret()
    name = f"{ADMINISTRATOR}-{tokens.hash_of(secret)[:8]}"
    spec = TokenSpec(user=ADMINISTRATOR, hash=tokens.hash_of(secret), description="made by `aliquot up`")
    token = await store.create(Token(metadata=Metadata(name=name), spec=spec))
    text = tokens.format_token(name, secret).reveal()
    if shared is None or await shared.write(text):
        return text
    await store.delete(token)
    return await shared.read()
