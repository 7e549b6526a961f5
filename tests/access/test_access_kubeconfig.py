"""Issued kubeconfigs: who may issue one, what it contains and when it ends, through server, client and command."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
import uvicorn
import yaml

from access.team import CLUSTER, Team, in_project, unique
from aliquot import units
from aliquot.api import KINDS, AccessRule, Json, Metadata, Token, User, Workload
from aliquot.api.token import TokenSpec
from aliquot.auth import tokens
from aliquot.backends.kubernetes.kubeconfigs import Kubeconfigs
from aliquot.backends.kubernetes.rbac import RbacController
from aliquot.backends.kubernetes.service_accounts import account_name
from aliquot.backends.kubernetes.unstructured_kinds import ROLE, SERVICE_ACCOUNT
from aliquot.client import connect
from aliquot.client.connection import Connection
from aliquot.errors import Conflict, Denied, Invalid, NotFound, Unauthenticated
from aliquot.labels import SYSTEM_NAMESPACE, namespace_of
from aliquot.server.app import ServerContext, application
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster
from support.stores.running import running
from support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("access")]
WORKLOAD = KINDS.of(Workload)


@dataclass
class Served:
    """A server in this process on the real cluster, with the RBAC controller."""

    url: str
    team: Team
    service: ServerContext

    async def token(self, user: str) -> str:
        secret, name = tokens.new_secret(), unique("token")
        spec = TokenSpec(user=user, hash=tokens.hash_of(secret))
        await self.team.store.create(Token(metadata=Metadata(name=name), spec=spec))
        return tokens.format_token(name, secret).reveal()

    async def administrator(self) -> str:
        """The token of an administrator, once the server knows the rule."""
        name = await self.team.user()
        await self.team.rule("system-administrator", CLUSTER, user=name)
        return await self.token_with_roles(name, 1)

    async def token_with_roles(self, user: str, rules: int) -> str:
        """A token of the user, once the server knows so many of its rules."""
        token = await self.token(user)

        async def ready() -> bool:
            return len((await self.service.access.authenticate(f"Bearer {token}")).roles) >= rules

        await eventually(ready)
        return token

    async def issue(self, token: str, project: str, user: str, seconds: int = 3600) -> Json:
        async with connect(Connection(self.url, token)) as server:
            return await server.kubeconfig(project, user, seconds)

    async def run(self, token: str, *arguments: str, folder: Path) -> tuple[int, str, str]:
        """Runs `aliquot kubeconfig`; returns exit status, output and errors."""
        environment = {**os.environ, "ALIQUOT_URL": self.url, "ALIQUOT_TOKEN": token, "HOME": str(folder)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aliquot.cli.main", "kubeconfig", *arguments,
            cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()


@pytest_asyncio.fixture
async def served(team: Team, admin: KubernetesDriver) -> AsyncIterator[Served]:
    service = ServerContext(admin, flavour="kubernetes", kubeconfigs=Kubeconfigs(admin))
    rbac = RbacController(admin, service.informers)
    config = uvicorn.Config(application(service), port=0, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    serving = asyncio.create_task(server.serve(sockets=[listener]))

    async def is_idle() -> bool:
        return rbac.controller.idle

    async with running(*(informer.run() for informer in service.informers), rbac.run()):
        await service.informers.wait()
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", team, service)
        await eventually(is_idle)
    server.should_exit = True
    await serving


async def check_works(config: Json, folder: Path) -> None:
    """Raises `Unauthenticated` or `Denied` if workloads cannot be listed with it in its own namespace."""
    file = folder / "issued"
    file.write_text(json.dumps(config))
    async with KubernetesDriver(kubeconfig.load([file])) as driver:
        await driver.list(WORKLOAD, config["contexts"][0]["context"]["namespace"])


async def wait_revoked(config: Json, folder: Path) -> None:
    """Waits until the token is invalid. Kubernetes caches tokens for seconds; until then the token has no rights."""

    async def is_revoked() -> bool:
        try:
            await check_works(config, folder)
        except (Denied, Unauthenticated) as exc:
            return isinstance(exc, Unauthenticated)
        return False

    await eventually(is_revoked)


async def test_content(served: Served, cluster: Cluster, tmp_path: Path) -> None:
    """It has the cluster's address and authority, the namespace, and a token that works."""
    project = await served.team.project()
    user = await served.team.member(project)
    issued = await served.issue(await served.administrator(), project, user)
    (config,) = [issued["kubeconfig"]]
    assert config["clusters"][0]["cluster"] == {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode((cluster.pki / "ca.crt").read_bytes()).decode(),
    }
    assert config["contexts"][0]["context"]["namespace"] == issued["namespace"] == namespace_of(project)
    await check_works(config, tmp_path)


async def test_duration(served: Served) -> None:
    """The token expires after the requested duration."""
    project = await served.team.project()
    user = await served.team.member(project)
    before = time.time()
    issued = await served.issue(await served.administrator(), project, user, 7200)
    token = issued["kubeconfig"]["users"][0]["user"]["token"]
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["exp"] - claims["iat"] == 7200
    assert units.timestamp(issued["expires"]) == claims["exp"]
    assert claims["iat"] >= int(before) - 1
    assert claims["sub"] == f"system:serviceaccount:runai:{namespace_of(project)}.{user}"


async def test_token_is_not_stored(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """The token is in the response, and neither in a log nor in the cluster."""
    project = await served.team.project()
    user = await served.team.member(project)
    issued = await served.issue(await served.administrator(), project, user)
    token = issued["kubeconfig"]["users"][0]["user"]["token"]
    out, err = capfd.readouterr()
    assert "kubeconfig issued" in out + err
    assert token not in out + err
    account = await served.team.driver.get(SERVICE_ACCOUNT, account_name(namespace_of(project), user), SYSTEM_NAMESPACE)
    assert token not in json.dumps(account.data)


async def test_only_access_managers_may_issue(served: Served) -> None:
    """Members, editors and administrators of other projects are refused, even for themselves."""
    own, other_project = await served.team.project(), await served.team.project()
    user = await served.team.member(own)
    editor, other = await served.team.user(), await served.team.user()
    await served.team.rule("editor", CLUSTER, user=editor)
    await served.team.rule("system-administrator", in_project(other_project), user=other)
    for name in (user, editor, other):
        token = await served.token_with_roles(name, 1)
        with pytest.raises(Denied, match="may not create accessrules for project"):
            await served.issue(token, own, user)
    with pytest.raises(Unauthenticated):
        await served.issue("alq_no_token", own, user)


async def test_project_administrator_may_issue(served: Served, tmp_path: Path) -> None:
    """An administrator of one project may issue kubeconfigs for that project."""
    project = await served.team.project()
    user, administrator = await served.team.member(project), await served.team.user()
    await served.team.rule("system-administrator", in_project(project), user=administrator)
    issued = await served.issue(await served.token_with_roles(administrator, 1), project, user)
    await check_works(issued["kubeconfig"], tmp_path)


async def test_user_without_a_role(served: Served) -> None:
    """A user without a role gets no kubeconfig, and no account is created."""
    project = await served.team.project()
    token, user = await served.administrator(), await served.team.user()
    with pytest.raises(Invalid, match="has no role in project"):
        await served.issue(token, project, user)
    with pytest.raises(NotFound):
        await served.team.driver.get(SERVICE_ACCOUNT, account_name(namespace_of(project), user), SYSTEM_NAMESPACE)
    with pytest.raises(Invalid, match="user 'nobody' does not exist"):
        await served.issue(token, project, "nobody")
    with pytest.raises(NotFound, match="not found"):
        await served.issue(token, "no-project", user)


async def test_disabled_user(served: Served) -> None:
    """A disabled user gets no kubeconfig."""
    project = await served.team.project()
    user = await served.team.user(disabled=True)
    await served.team.rule("viewer", in_project(project), user=user)
    with pytest.raises(Invalid, match="is disabled"):
        await served.issue(await served.administrator(), project, user)


@pytest.mark.parametrize("seconds", [0, 599, 366 * 86400])
async def test_duration_limits(served: Served, seconds: int) -> None:
    """The duration is at least what Kubernetes allows, and at most a year."""
    project = await served.team.project()
    with pytest.raises(Invalid, match="duration: must be from 10m to 365d"):
        await served.issue(await served.administrator(), project, "ann", seconds)


async def test_revoked_with_the_last_rule(served: Served, tmp_path: Path) -> None:
    """Deleting the user's last rule revokes it, however long it was valid."""
    project = await served.team.project()
    user = await served.team.user()
    rule = await served.team.rule("viewer", in_project(project), user=user)
    issued = await served.issue(await served.administrator(), project, user)
    await check_works(issued["kubeconfig"], tmp_path)
    await served.team.store.delete(await served.team.store.get(AccessRule, rule.metadata.name))
    await wait_revoked(issued["kubeconfig"], tmp_path)


async def test_revoked_when_the_user_is_disabled(served: Served, tmp_path: Path) -> None:
    """Disabling the user revokes it at once."""
    project = await served.team.project()
    user = await served.team.member(project)
    issued = await served.issue(await served.administrator(), project, user)
    seen = await served.team.store.get(User, user)
    await served.team.store.update(replace(seen, spec=replace(seen.spec, disabled=True)), seen=seen)
    await wait_revoked(issued["kubeconfig"], tmp_path)


async def test_rights_follow_the_rules(served: Served, tmp_path: Path) -> None:
    """A smaller role of the user reduces the rights of its kubeconfig."""
    project = await served.team.project()
    user = await served.team.user()
    rule = await served.team.rule("l1-researcher", in_project(project), user=user)
    issued = await served.issue(await served.administrator(), project, user)
    spec = replace(rule.spec, role="viewer")
    await served.team.store.update(replace(rule, spec=spec), seen=rule)
    (tmp_path / "issued").write_text(json.dumps(issued["kubeconfig"]))
    job = {"metadata": {"name": "train", "namespace": namespace_of(project)}, "spec": {"image": "pytorch"}}
    async with KubernetesDriver(kubeconfig.load([tmp_path / "issued"])) as driver:

        async def cannot_create() -> bool:
            try:
                created = await driver.create(WORKLOAD, Document(job))
                await driver.delete(WORKLOAD, created.name, created.namespace)
            except Denied:
                return True
            return False

        async def can_list() -> bool:
            try:
                await driver.list(WORKLOAD, namespace_of(project))
            except Denied:
                return False
            return True

        await eventually(cannot_create)
        await eventually(can_list)  # rights are revoked before others are granted


async def test_second_kubeconfig(served: Served, tmp_path: Path) -> None:
    """A second kubeconfig does not revoke the first."""
    project = await served.team.project()
    user, token = await served.team.member(project), await served.administrator()
    first, second = [await served.issue(token, project, user) for _ in range(2)]
    await check_works(first["kubeconfig"], tmp_path)
    await check_works(second["kubeconfig"], tmp_path)


async def test_concurrent_issues(served: Served, tmp_path: Path) -> None:
    """Ten kubeconfigs for one project can be issued at once, while the controller binds too."""
    project = await served.team.project()
    users = [await served.team.member(project) for _ in range(10)]
    token = await served.administrator()
    issued = await asyncio.gather(*(served.issue(token, project, user) for user in users))
    for result in issued:
        await check_works(result["kubeconfig"], tmp_path)


async def test_foreign_account_of_our_name(served: Served) -> None:
    """No token is issued for an account that Aliquot does not manage: it may have other rights."""
    project = await served.team.project()
    user = await served.team.member(project)
    name = account_name(namespace_of(project), user)
    await served.team.driver.create(
        SERVICE_ACCOUNT, Document({"metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}})
    )
    with pytest.raises(Conflict, match="is not managed by Aliquot"):
        await served.issue(await served.administrator(), project, user)


async def test_foreign_role_of_our_name(served: Served) -> None:
    """The error names the Role that is in the way."""
    project = await served.team.project()
    space = namespace_of(project)
    foreign = {"metadata": {"name": "aliquot-viewer", "namespace": space}, "rules": []}
    await served.team.driver.create(ROLE, Document(foreign))
    user = await served.team.member(project, "viewer")
    with pytest.raises(Conflict, match="aliquot-viewer that is not managed by Aliquot"):
        await served.issue(await served.administrator(), project, user)


async def test_command_writes_a_private_file(served: Served, tmp_path: Path) -> None:
    """The file has mode 0600 and the requested address; it is overwritten only with --force."""
    project = await served.team.project()
    user, token = await served.team.member(project), await served.administrator()
    arguments = ["--project", project, "--user", user, "-o", "mine.yaml"]
    status, out, err = await served.run(token, *arguments, "--server", "https://k8s.example.com:6443", folder=tmp_path)
    assert (status, out) == (0, "")
    assert err.startswith("mine.yaml written\n")
    file = tmp_path / "mine.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert yaml.safe_load(file.read_text())["clusters"][0]["cluster"]["server"] == "https://k8s.example.com:6443"
    before = file.read_text()
    status, out, err = await served.run(token, *arguments, folder=tmp_path)
    assert (status, out) == (1, "")
    assert err.startswith("error: mine.yaml is there already\nhint: ")
    assert file.read_text() == before
    assert (await served.run(token, *arguments, "--force", folder=tmp_path))[0] == 0
    assert file.read_text() != before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["mine.yaml"]


async def test_command_prints_a_kubeconfig(served: Served, tmp_path: Path) -> None:
    """Without a file the kubeconfig goes to standard output, and messages to standard error."""
    project = await served.team.project()
    user = await served.team.member(project)
    arguments = ["-p", project, "--user", user, "--duration", "10m"]
    status, out, err = await served.run(await served.administrator(), *arguments, folder=tmp_path)
    assert (status, err.count("\n")) == (0, 1)
    assert f"{user} may use namespace {namespace_of(project)} with it until " in err
    await check_works(yaml.safe_load(out), tmp_path)
