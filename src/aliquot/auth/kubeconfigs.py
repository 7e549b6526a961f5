"""Kubeconfigs that the platform issues to users. The server requests them; the Kubernetes back end issues them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from aliquot.api import Json


@dataclass(frozen=True, slots=True)
class IssuedKubeconfig:
    namespace: str
    expires: str  # RFC 3339, as Kubernetes returned it
    # Contains the token.
    kubeconfig: Json = field(repr=False)


class KubeconfigIssuer(Protocol):
    async def issue(self, project: str, user: str, seconds: int) -> IssuedKubeconfig:
        """A kubeconfig that authenticates as the user and works only in the project's namespace."""
