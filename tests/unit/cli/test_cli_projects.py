"""project, department, token, whoami, status, and the commands of `runai-adm`."""

from __future__ import annotations

import asyncio
import json
import time
from typing import NoReturn

import pytest
from click.testing import CliRunner

from aliquot.api import KINDS
from aliquot.cli.main import aliquot
from aliquot.cli.object_refs import ObjectRef
from aliquot.cli.projects import spec_from_flags, wait_until_ready
from aliquot.client.connection import Connection
from aliquot.errors import PlatformError, Unavailable
from support.cli.environment import CliEnvironment

PROJECT = KINDS.named("project")


def test_create_project_with_quota(cli: CliEnvironment) -> None:
    """Flags set the fields of the spec, with exact numbers."""
    flags = "--gpu 4 --cpu 0.5 --memory 64GiB --gpu-limit 8 --department ml --no-over-quota --priority 7"
    cli.run("project", "create", "team-a", "--no-wait", *flags.split(), "--description", "ours")
    assert cli.get("project", "team-a")["spec"] == {
        "department": "ml",
        "description": "ours",
        "quota": {"gpu": 4, "cpu": 0.5, "memory": "64Gi"},
        "limit": {"gpu": 8},
        "overQuota": False,
        "priority": 7,
    }


def test_quota_of_another_pool() -> None:
    """With --node-pool the amounts belong to that pool."""
    assert spec_from_flags({"gpu": "2", "node_pool": "a100"}) == {"pools": {"a100": {"quota": {"gpu": 2}}}}
    assert spec_from_flags({"gpu": "2", "node_pool": "default"}) == {"quota": {"gpu": 2}}


@pytest.mark.parametrize(
    "flag, value, error",
    [
        ("--gpu", "many", "--gpu: must be a number such as 4 or 0.5, not 'many'"),
        ("--gpu", "-1", "--gpu: must not be negative"),
        ("--gpu", "0.1234", "--gpu: must have at most three decimals"),
        ("--memory", "lots", "--memory: must be an amount such as 512Mi"),
        ("--cpu", "1e30", "--cpu: is too large"),
    ],
)
def test_bad_amounts(cli: CliEnvironment, flag: str, value: str, error: str) -> None:
    """The error of an invalid amount names the flag, and nothing is created."""
    result = cli.invoke("project", "create", "team-a", flag, value)
    assert result.exit_code == 1
    assert error in result.stderr
    assert cli.run("get", "projects", "-o", "name") == ""


def test_update(cli: CliEnvironment) -> None:
    """Only the given flags change the spec; `unlimited` removes an amount."""
    cli.run("project", "create", "team-a", "--no-wait", "--gpu", "4", "--memory", "1Gi")
    assert cli.run("project", "update", "team-a", "--memory", "unlimited") == "project/team-a configured\n"
    assert cli.get("project", "team-a")["spec"] == {"quota": {"gpu": 4}}
    assert cli.run("project", "update", "team-a", "--gpu", "4") == "project/team-a unchanged\n"
    assert cli.invoke("project", "update", "team-a").exit_code == 2
    assert cli.invoke("project", "update", "nobody", "--gpu", "1").exit_code == 1


def test_duplicate_name(cli: CliEnvironment) -> None:
    cli.run("department", "create", "ml", "--gpu", "8")
    result = cli.invoke("department", "create", "ml")
    assert result.exit_code == 1
    assert "already exists" in result.stderr


def test_list_marks_the_default(cli: CliEnvironment) -> None:
    """`project set` stores the default project, and the list shows it."""
    cli.run("project", "create", "team-a", "--no-wait", "--gpu", "1.5")
    cli.run("project", "create", "team-b", "--no-wait", "--department", "ml")
    assert cli.run("project", "set", "team-a") == "project team-a configured successfully\n"
    assert json.loads((cli.home / "config.json").read_text()) == {"project": "team-a"}
    lines = cli.run("project", "list").splitlines()
    assert lines[0].split() == ["PROJECT", "DEPARTMENT", "DESERVED", "GPUs", "ALLOCATED", "GPUs", "STATUS", "AGE"]
    assert lines[1].split()[:4] == ["team-a", "(default)", "default", "1.5"]
    assert lines[2].split()[:3] == ["team-b", "ml", "0"]
    assert cli.run("list", "projects") == "\n".join(lines) + "\n"
    assert cli.invoke("project", "set", "nobody").exit_code == 1


def test_department_list(cli: CliEnvironment) -> None:
    assert "department create" in cli.invoke("department", "list").stderr
    cli.run("department", "create", "ml", "--gpu", "8")
    assert cli.run("department", "list").splitlines()[1].split()[:3] == ["ml", "0", "8"]
    assert cli.run("department", "list", "-o", "name") == "department/ml\n"
    assert cli.run("department", "delete", "ml", "-y") == "department/ml deleted\n"


async def _set_status(cli: CliEnvironment, **status: object) -> None:
    await cli.driver.patch(PROJECT, "team-a", "", {"status": status}, status=True)


def test_waiting_ends_when_ready(cli: CliEnvironment) -> None:
    """create returns as soon as the project is ready."""
    project = cli.create("project", "team-a")

    async def wait_and_set_ready() -> None:
        waiting = asyncio.create_task(
            wait_until_ready(cli.context(), cli.driver, ObjectRef(PROJECT, "team-a"), project.uid)
        )
        await asyncio.sleep(0)
        assert not waiting.done()
        await _set_status(cli, phase="Ready")
        await asyncio.wait_for(waiting, 5)

    began = time.monotonic()
    asyncio.run(wait_and_set_ready())
    assert time.monotonic() - began < 2


def test_waiting_ends_with_an_error(cli: CliEnvironment) -> None:
    """Waiting for a project that fails, or is not ready in time, is an error."""
    project = cli.create("project", "team-a")
    wait = wait_until_ready(cli.context(), cli.driver, ObjectRef(PROJECT, "team-a"), project.uid, timeout_s=0)
    with pytest.raises(Unavailable, match="was created but is not ready"):
        asyncio.run(wait)
    asyncio.run(_set_status(cli, phase="Failed", message="namespace is taken"))
    with pytest.raises(PlatformError, match="namespace is taken"):
        asyncio.run(wait_until_ready(cli.context(), cli.driver, ObjectRef(PROJECT, "team-a"), project.uid))


def test_token_is_shown_once(cli: CliEnvironment) -> None:
    """Only the secret goes to stdout, so that it can be piped."""
    result = cli.invoke("token", "create", "ci", "--expires", "12h", "--description", "for CI")
    assert (result.exit_code, result.stdout) == (0, "alq_shown_once\n")
    spec = cli.get("token", "ci")["spec"]
    assert (spec["user"], spec["description"]) == ("admin", "for CI")
    assert "expires" in spec
    assert "alq_" not in cli.run("token", "list", "-o", "yaml")
    assert cli.invoke("token", "create", "x", "--expires", "soon").exit_code == 1
    assert cli.run("token", "delete", "ci") == "token/ci deleted\n"


def test_whoami(cli: CliEnvironment) -> None:
    assert cli.run("whoami") == "User:    admin\nSubject: token:first\nRoles:   system-administrator\n"
    assert json.loads(cli.run("whoami", "--json"))["user"] == "admin"


def test_status(cli: CliEnvironment) -> None:
    """status prints the address, whether the server is ready, and what it holds."""
    cli.create("project", "team-a")
    out = cli.run("status")
    assert "http://127.0.0.1:1" in out
    assert "Ready:     yes" in out
    assert "1 project" in out
    assert json.loads(cli.run("status", "--json"))["counts"]["projects"] == 1


def test_node_roles(cli: CliEnvironment) -> None:
    """Roles are labels of nodes; --all selects every node."""
    for name in ("dgx1", "dgx2"):
        cli.create("node", name)
    assert cli.invoke_adm("set", "node-role", "--gpu-worker", "dgx1").stdout == "node/dgx1 role gpu-worker set\n"
    assert "node-role.kubernetes.io/runai-gpu-worker" in cli.get("node", "dgx1")["metadata"]["labels"]
    assert cli.invoke_adm("set", "node-role", "--cpu-worker", "--all").stdout.count("set") == 2
    assert cli.invoke_adm("remove", "node-role", "--gpu-worker", "--cpu-worker", "--all").exit_code == 0
    assert not cli.get("node", "dgx1")["metadata"].get("labels")
    assert cli.invoke_adm("set", "node-role", "dgx1").exit_code == 2
    assert cli.invoke_adm("set", "node-role", "--gpu-worker").exit_code == 2
    assert cli.invoke_adm("set", "node-role", "--gpu-worker", "nobody").exit_code == 1


def test_roles_as_text() -> None:
    from aliquot.cli.about import roles_text

    roles = [{"role": "viewer", "scope": "project team-a"}, "editor"]
    assert roles_text(roles) == "viewer (project team-a), editor"


def test_an_unreachable_server_has_a_hint(cli: CliEnvironment) -> None:
    """Connection errors have a hint with the next step."""

    def refused(connection: Connection) -> NoReturn:
        error = Unavailable("cannot reach http://127.0.0.1:1")
        error.sent = False
        raise error

    context = cli.context()
    context.opener = refused
    result = CliRunner().invoke(aliquot, ["get", "projects"], obj=context)
    assert result.exit_code == 1
    assert "hint: start one with `aliquot up`" in result.stderr
