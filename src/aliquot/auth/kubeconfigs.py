"""Kubeconfigs that the platform issues: what the server asks for, and what a back end with a cluster answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from aliquot.api import Json


@dataclass(frozen=True, slots=True)
class IssuedKubeconfig:
    namespace: str
    expires: str  # RFC 3339, as Kubernetes said
    # With the token in it.
    kubeconfig: Json = field(repr=False)


class KubeconfigIssuer(Protocol):
    async def issue(self, project: str, user: str, seconds: int) -> IssuedKubeconfig:
        """A kubeconfig that speaks as the user, in the project's namespace and nowhere else."""
