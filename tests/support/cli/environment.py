"""Runs the real programs against a store in memory, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from aliquot.admission.validation import validate_document
from aliquot.admission.workload_admission import WorkloadAdmission
from aliquot.api import KINDS, Json
from aliquot.cli.context import CommandContext
from aliquot.cli.main import aliquot, runai, runai_adm
from aliquot.client.connection import Connection, ServerOptions
from aliquot.errors import NotFound
from aliquot.scheduler.last_decision import Decision
from aliquot.sim.export import export_scenario
from aliquot.store.driver import Document
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.informer import Informers
from support.stores.running import running


class MemoryServer(MemoryDriver):
    """A store in memory that answers whoami, issues tokens and applies admission defaults, as the server does."""

    async def whoami(self) -> Json:
        return {"user": "admin", "subject": "token:first", "roles": ["system-administrator"]}

    # Answers of the scheduler; None: no scheduler runs in the server's process.
    explanation: Json | None = None
    decision: Decision | None = None

    async def explain(self, namespace: str, workload: str, *, what_if: bool = False) -> Json:
        await self.get(KINDS.named("workload"), workload, namespace)
        if self.explanation is None:
            raise NotFound("no scheduler runs in this process")
        return self.explanation

    async def scenario(self) -> Json:
        if self.decision is None:
            raise NotFound("no scheduler runs in this process")
        return export_scenario(self.decision)

    async def create(self, kind: Any, document: Document) -> Document:
        if kind.name == "Workload":
            document = await self._admit(kind, document)
        if kind.name != "Token":
            return await super().create(kind, document)
        spec = {**document.data["spec"], "hash": "0" * 64}
        created = await super().create(kind, Document({**document.data, "spec": spec}))
        return Document({**created.data, "token": "alq_shown_once"})

    async def dry_run_create(self, kind: Any, document: Document) -> Json:
        return (await self._admit(kind, document)).data

    async def _admit(self, kind: Any, document: Document) -> Document:
        informers = Informers(self)
        admission = WorkloadAdmission(self, informers)
        async with running(*(informer.run() for informer in informers)):
            await informers.wait()
            data = await admission.apply_defaults(document.data, document.namespace)
            validated = validate_document(kind, data, namespace=document.namespace, creating=True)
            admission.validate(validated)
            return validated


class CliEnvironment:
    """A store, a home folder, and methods that run commands."""

    def __init__(self, home: Path) -> None:
        self.driver = MemoryServer()
        self.home = home

    def context(self) -> CommandContext:
        @asynccontextmanager
        async def opener(connection: Connection) -> AsyncIterator[Any]:  # has only the calls that commands make here
            yield self.driver

        return CommandContext(ServerOptions(url="http://127.0.0.1:1"), self.home / "config.json", opener=opener)

    def invoke(self, *arguments: str, input: str | None = None, program: Any = aliquot) -> Result:
        return CliRunner().invoke(program, list(arguments), obj=self.context(), input=input)

    def invoke_adm(self, *arguments: str) -> Result:
        return self.invoke(*arguments, program=runai_adm)

    def invoke_runai(self, line: str, *arguments: str) -> Result:
        """Run a `runai` command: a line that is split at spaces, and further arguments that are not split."""
        return self.invoke(*line.split(), *arguments, program=runai)

    def run_runai(self, line: str, *arguments: str) -> str:
        """Run a `runai` command that must succeed, and return its stdout."""
        result = self.invoke_runai(line, *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def create_project(self, name: str, **spec: Any) -> None:
        """Create a project and its namespace."""
        self.create("project", name, spec=spec)
        self.create("namespace", f"runai-{name}", metadata={"labels": {"aliquot.dev/project": name}})

    def set_status(self, kind_name: str, name: str, namespace: str = "", **status: Any) -> None:
        """Write the status of an object, as controllers and agents do."""
        asyncio.run(self.driver.patch(KINDS.named(kind_name), name, namespace, {"status": status}, status=True))

    def run(self, *arguments: str, input: str | None = None) -> str:
        """Run a command that must succeed, and return its stdout."""
        result = self.invoke(*arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def get(self, kind_name: str, name: str, namespace: str = "") -> Json:
        return asyncio.run(self.driver.get(KINDS.named(kind_name), name, namespace)).data

    def create(self, kind_name: str, name: str, namespace: str = "", **parts: Any) -> Document:
        kind = KINDS.named(kind_name)
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **parts.pop("metadata", {})}
        data = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **parts}
        return asyncio.run(MemoryDriver.create(self.driver, kind, Document(data)))
