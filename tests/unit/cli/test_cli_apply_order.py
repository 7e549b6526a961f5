"""`apply` of a project and its objects waits for the namespace of the project."""

from __future__ import annotations

from typing import Any

from aliquot.api import KINDS
from aliquot.labels import PROJECT
from aliquot.store.driver import Document
from support.cli.environment import CliEnvironment, MemoryServer

BOTH = """
apiVersion: aliquot.dev/v1
kind: Project
metadata: {name: team-a}
---
apiVersion: aliquot.dev/v1
kind: Template
metadata: {name: half, namespace: runai-team-a}
"""


class SlowPlatform(MemoryServer):
    """Makes a project Ready or Failed at the third read."""

    def __init__(self, **status: str) -> None:
        super().__init__()
        self._status = status
        self._reads = 0

    async def get(self, kind: Any, name: str, namespace: str = "") -> Document:
        document = await super().get(kind, name, namespace)
        if kind.name == "Project":
            self._reads += 1
            if self._reads == 3:
                return await self._reconcile(kind, name)
        return document

    async def _reconcile(self, kind: Any, name: str) -> Document:
        if self._status["phase"] == "Ready":
            metadata = {"name": f"runai-{name}", "labels": {PROJECT: name}}
            await self.create(
                KINDS.named("Namespace"), Document({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            )
        return await self.patch(kind, name, "", {"status": self._status}, status=True)


def test_waits_for_the_namespace(cli: CliEnvironment) -> None:
    """Objects of a project are created when the project is ready."""
    cli.driver = SlowPlatform(phase="Ready")
    assert cli.run("apply", "-f", "-", input=BOTH) == "project/team-a created\ntemplate/half created\n"


def test_project_that_fails(cli: CliEnvironment) -> None:
    """The command fails with the message of a project that cannot get its namespace."""
    cli.driver = SlowPlatform(phase="Failed", message="namespace runai-team-a belongs to project team-b")
    result = cli.invoke("apply", "-f", "-", input=BOTH)
    assert result.exit_code == 1
    assert "error: project/team-a failed: namespace runai-team-a belongs to project team-b\n" in result.stderr
