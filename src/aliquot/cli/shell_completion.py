"""Shell completion of kinds and of the names of objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from aliquot.api import KINDS
from aliquot.cli.context import NamespaceScope, command_context
from aliquot.errors import PlatformError
from aliquot.store.driver import StoreDriver

# A shell that takes longer after a key press feels broken.
_TIMEOUT_S = 2.0

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    done, comma, rest = incomplete.rpartition(",")
    return [CompletionItem(f"{done}{comma}{kind.plural}") for kind in KINDS if kind.plural.startswith(rest)]


def complete_names(kind_name: str = "") -> Completer:
    """Completes names of objects of this kind, or else of the kind that was typed before."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        try:
            names = _names(ctx, kind_name)
        except (PlatformError, OSError, TimeoutError, click.UsageError):
            return []  # without a server there is nothing to complete; an error would disturb the user's line
        taken = ctx.params.get("names") or ()
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in taken]

    return complete


def _names(ctx: click.Context, kind_name: str) -> list[str]:
    kind = KINDS.named(kind_name or str(ctx.params.get("kind") or ctx.params.get("kinds")))
    context = command_context(ctx)
    scope = NamespaceScope(ctx.params.get("namespace") or "", ctx.params.get("project") or "")

    async def list_names(driver: StoreDriver) -> list[str]:
        async with asyncio.timeout(_TIMEOUT_S):
            listing = await driver.list(kind, scope.for_list(kind, context.settings.project))
        return sorted({document.name for document in listing.items})

    return context.run(list_names)
