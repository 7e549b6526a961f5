"""A file with a project and what lives in it: the project's namespace comes first, however long it takes."""

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
    """Gives a project its namespace, or its refusal, only after somebody has looked a few times."""

    def __init__(self, **status: str) -> None:
        super().__init__()
        self._status = status
        self._looks = 0

    async def get(self, kind: Any, name: str, namespace: str = "") -> Document:
        found = await super().get(kind, name, namespace)
        if kind.name == "Project":
            self._looks += 1
            if self._looks == 3:
                return await self._decide(kind, name)
        return found

    async def _decide(self, kind: Any, name: str) -> Document:
        if self._status["phase"] == "Ready":
            metadata = {"name": f"runai-{name}", "labels": {PROJECT: name}}
            await self.create(
                KINDS.named("Namespace"), Document({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            )
        return await self.patch(kind, name, "", {"status": self._status}, status=True)


def test_waits_for_the_namespace(cli: CliEnvironment) -> None:
    """What lives in a project is created once the project is ready."""
    cli.driver = SlowPlatform(phase="Ready")
    assert cli.run("apply", "-f", "-", input=BOTH) == "project/team-a created\ntemplate/half created\n"


def test_says_why_the_project_is_not_ready(cli: CliEnvironment) -> None:
    """A project that cannot get its namespace says so, and the command fails."""
    cli.driver = SlowPlatform(phase="Failed", message="namespace runai-team-a belongs to project team-b")
    result = cli.invoke("apply", "-f", "-", input=BOTH)
    assert result.exit_code == 1
    assert "error: project/team-a failed: namespace runai-team-a belongs to project team-b\n" in result.stderr
