"""Finding a cluster: kubeconfig files, service accounts, helper programs, and every way to get them wrong."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.errors import Denied, Invalid, Unauthenticated
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from aliquot.store.http.transport import Endpoint
from support.kubernetes.cluster import TOKEN, Cluster
from support.kubernetes.kinds import NAMESPACE, POD


def write(path: Path, cluster: dict[str, Any], user: dict[str, Any], name: str = "test") -> Path:
    """A kubeconfig with one context."""
    config = {
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(config))
    return path


def at(cluster: Cluster) -> dict[str, Any]:
    return {"server": cluster.server, "certificate-authority": str(cluster.pki / "ca.crt")}


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


async def answers(endpoint: Endpoint) -> bool:
    async with KubernetesDriver(endpoint) as driver:
        return bool((await driver.list(NAMESPACE)).items)


@pytest.mark.kube
async def test_embedded_certificates(cluster: Cluster, tmp_path: Path) -> None:
    """Certificates may be inline in the file."""
    trust = {"server": cluster.server, "certificate-authority-data": data(cluster.pki / "ca.crt")}
    user = {f"client-{part}-data": data(cluster.pki / f"admin.{end}") for part, end in _PARTS}

    assert await answers(kubeconfig.load([write(tmp_path / "c", trust, user)]))


@pytest.mark.kube
async def test_relative_files(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths are relative to the file that has them."""
    for name in ("ca.crt", "admin.crt", "admin.key"):
        (tmp_path / name).write_bytes((cluster.pki / name).read_bytes())
    user = {f"client-{part}": f"admin.{end}" for part, end in _PARTS}
    path = write(tmp_path / "c", {"server": cluster.server, "certificate-authority": "ca.crt"}, user)

    monkeypatch.chdir("/")
    assert await answers(kubeconfig.load([path.relative_to("/")]))


@pytest.mark.kube
async def test_unverified_server(cluster: Cluster, tmp_path: Path) -> None:
    """Verification is off when, and only when, the file says so."""
    path = write(tmp_path / "c", {"server": cluster.server, "insecure-skip-tls-verify": True}, {"token": TOKEN})

    assert await answers(kubeconfig.load([path]))


@pytest.mark.kube
async def test_other_name_in_the_certificate(cluster: Cluster, tmp_path: Path) -> None:
    """The server's certificate may be verified for another name than that of the address."""
    named = {**at(cluster), "tls-server-name": "kubernetes.default.svc"}

    assert await answers(kubeconfig.load([write(tmp_path / "c", named, {"token": TOKEN})]))


@pytest.mark.kube
async def test_token_file_is_read_again(cluster: Cluster, tmp_path: Path) -> None:
    """A token file is read again after it changes."""
    (tmp_path / "token").write_text("wrong\n")
    endpoint = kubeconfig.load([write(tmp_path / "c", at(cluster), {"tokenFile": "token"})])
    async with KubernetesDriver(endpoint) as driver:
        with pytest.raises(Unauthenticated):
            await driver.list(NAMESPACE)
        (tmp_path / "token").write_text(f"{TOKEN}\n")

        assert (await driver.list(NAMESPACE)).items


@pytest.mark.kube
async def test_impersonation(cluster: Cluster, tmp_path: Path) -> None:
    """Impersonation gives the rights of the impersonated user."""
    user = {"token": TOKEN, "as": "jane", "as-groups": ["people", "staff"]}
    async with KubernetesDriver(kubeconfig.load([write(tmp_path / "c", at(cluster), user)])) as driver:
        with pytest.raises(Denied, match="jane"):
            await driver.list(NAMESPACE)


@pytest.mark.kube
async def test_service_account(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """In a pod the mounted service account is used."""
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={namespace}")
    token = cluster.kubectl("create", "token", "default", f"--namespace={namespace}")
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_bytes((cluster.pki / "ca.crt").read_bytes())
    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(cluster.port)}

    async with KubernetesDriver(kubeconfig.in_cluster(tmp_path, env)) as driver:
        await driver.check()
        with pytest.raises(Denied, match=f"system:serviceaccount:{namespace}:default"):
            await driver.list(POD, namespace)


def test_outside_a_pod(tmp_path: Path) -> None:
    """Without a service account the error says so."""
    with pytest.raises(Invalid, match="not in a pod"):
        kubeconfig.in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "h"})


# --- helper programs

HELPER = """
import json, os, pathlib, sys
exec_info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = pathlib.Path(sys.argv[1])
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))
status = json.loads(os.environ["STATUS"])
status = status[min(runs, len(status)) - 1]
print(json.dumps({"apiVersion": exec_info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""
V1 = "client.authentication.k8s.io/v1"


def helped(cluster: Cluster, tmp_path: Path, *statuses: dict[str, Any], version: str = V1) -> Endpoint:
    """A cluster whose user comes from a small program that gives these credentials, one after the other."""
    script = tmp_path / "helper.py"
    script.write_text(HELPER)
    plugin = {
        "apiVersion": version,
        "command": sys.executable,
        "args": [str(script), str(tmp_path / "runs")],
        "env": [{"name": "STATUS", "value": json.dumps(statuses)}],
        "interactiveMode": "IfAvailable",
    }
    return kubeconfig.load([write(tmp_path / "c", at(cluster), {"exec": plugin})])


def runs(tmp_path: Path) -> int:
    return int((tmp_path / "runs").read_text())


@pytest.mark.kube
@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_helper_gives_a_token(cluster: Cluster, tmp_path: Path, version: str) -> None:
    """A helper program is run once, and its token used for every request."""
    async with KubernetesDriver(helped(cluster, tmp_path, {"token": TOKEN}, version=version)) as driver:
        for _ in range(3):
            assert (await driver.list(NAMESPACE)).items
    assert runs(tmp_path) == 1


@pytest.mark.kube
async def test_helper_gives_a_certificate(cluster: Cluster, tmp_path: Path) -> None:
    """A helper program may give a client certificate instead of a token."""
    pair = {f"client{part.title()}Data": (cluster.pki / f"admin.{end}").read_text() for part, end in _PARTS}

    assert await answers(helped(cluster, tmp_path, pair))


@pytest.mark.kube
async def test_expired_credential_is_renewed(cluster: Cluster, tmp_path: Path) -> None:
    """A credential that is about to expire is asked for again."""
    old = {"token": TOKEN, "expirationTimestamp": "2020-01-01T00:00:00Z"}
    young = {"token": TOKEN, "expirationTimestamp": "2999-01-01T00:00:00Z"}
    async with KubernetesDriver(helped(cluster, tmp_path, old, young)) as driver:
        for _ in range(4):
            await driver.list(NAMESPACE)
    assert runs(tmp_path) == 2


@pytest.mark.kube
async def test_refused_credential_is_renewed(cluster: Cluster, tmp_path: Path) -> None:
    """A credential that the server refuses is asked for again, and the request goes through."""
    assert await answers(helped(cluster, tmp_path, {"token": "revoked"}, {"token": TOKEN}))
    assert runs(tmp_path) == 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('first line\\nno network')", "exit status 1: no network"),
        ("print('sekret')", "no ExecCredential"),
        ('print(\'{"apiVersion": "v0", "kind": "ExecCredential", "status": {}}\')', "no ExecCredential of"),
        ("import os; print(os.environ['KUBERNETES_EXEC_INFO'].replace('spec', 'status'))", "neither a token nor"),
    ],
)
async def test_failing_helper_is_reported(tmp_path: Path, code: str, message: str) -> None:
    """A helper that fails is named with the last line of its errors; its output is never shown."""
    plugin = {"apiVersion": V1, "command": sys.executable, "args": ["-c", code]}
    endpoint = kubeconfig.load([write(tmp_path / "c", {"server": "http://127.0.0.1:1"}, {"exec": plugin})])

    with pytest.raises(Unauthenticated, match=message) as caught:
        await endpoint.token()
    assert "sekret" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_missing_helper_says_how_to_get_it(tmp_path: Path) -> None:
    """The hint of the kubeconfig is passed on."""
    plugin = {"apiVersion": V1, "command": "no-such-helper", "installHint": "get it\nfrom the shop"}
    endpoint = kubeconfig.load([write(tmp_path / "c", {"server": "http://127.0.0.1:1"}, {"exec": plugin})])

    with pytest.raises(Unauthenticated, match="no program no-such-helper to log in with; get it from the shop"):
        await endpoint.token()


async def test_helper_learns_about_the_cluster(tmp_path: Path) -> None:
    """A helper that wants to know gets the cluster's address."""
    code = (
        "import json, os; exec_info = json.loads(os.environ['KUBERNETES_EXEC_INFO']);"
        "exec_info['status'] = {'token': exec_info['spec']['cluster']['server'].split('/')[2]};"
        "print(json.dumps(exec_info))"
    )
    plugin = {"apiVersion": V1, "command": sys.executable, "args": ["-c", code], "provideClusterInfo": True}
    endpoint = kubeconfig.load([write(tmp_path / "c", {"server": "http://127.0.0.1:1"}, {"exec": plugin})])

    assert await endpoint.token() == "127.0.0.1:1"


# --- files


async def test_first_file_wins(tmp_path: Path) -> None:
    """Of several files the first definition wins, and missing files are ignored."""
    first = write(tmp_path / "one", {"server": "http://one"}, {"token": "one"})
    second = write(tmp_path / "two", {"server": "http://two"}, {"token": "two"})
    more = write(tmp_path / "more", {"server": "http://more"}, {"token": "more"}, "more")
    env = {"KUBECONFIG": os.pathsep.join(map(str, [tmp_path / "none", first, second, more]))}

    assert kubeconfig.find(env=env).url == "http://one"
    assert await kubeconfig.find(env=env).token() == "one"
    assert kubeconfig.find(context="more", env=env).url == "http://more"
    assert kubeconfig.find(str(second), env=env).url == "http://two"


def test_nothing_to_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any file and outside a pod the error names the paths that were tried."""
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(Invalid, match=r"no kubeconfig in .*/\.kube/config"):
        kubeconfig.find(env={})
    with pytest.raises(Invalid, match="no such file"):
        kubeconfig.find(str(tmp_path / "none"), env={})


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    """Neither the endpoint nor its credentials print a secret."""
    endpoint = kubeconfig.load([write(tmp_path / "c", {"server": "http://x"}, {"token": "sekret"})])

    assert "sekret" not in repr(endpoint) + repr(endpoint.token)


WRONG = [
    ({"server": "x:1"}, {}, "cluster 'test': server must be an address"),
    ({"server": 5}, {}, "cluster 'test': server must be text"),
    ({"server": "https://u:sekret@x"}, {}, "cluster 'test': server is wrong"),
    ({"server": "https://x", "certificate-authority-data": "%%"}, {}, "certificate-authority-data is not base64"),
    ({"server": "https://x", "certificate-authority-data": "aGk="}, {}, "certificate-authority-data is not a certifi"),
    ({"server": "https://x", "certificate-authority": "none"}, {}, "certificate-authority: cannot read .*/none: No "),
    ({"server": "https://x", "insecure-skip-tls-verify": "yes"}, {}, "insecure-skip-tls-verify must be true or false"),
    ({"server": "https://x"}, {"client-certificate": "a"}, "user 'test': client-key is missing"),
    ({"server": "https://x"}, {"client-certificate": "a", "client-key": "b"}, "client-certificate: cannot read"),
    (
        {"server": "https://x"},
        {"client-certificate-data": "aGk=", "client-key-data": "aGk="},
        "user 'test': the client certificate and key cannot be used",
    ),
    ({"server": "https://x"}, {"token": 5}, "user 'test': token must be text"),
    ({"server": "https://x"}, {"auth-provider": {}}, "user 'test': auth-provider is not supported"),
    ({"server": "https://x"}, {"username": "a", "password": "sekret"}, "username is not supported"),
    ({"server": "https://x"}, {"exec": {"apiVersion": V1}}, "user 'test': exec: command is required"),
    ({"server": "https://x"}, {"exec": {"command": "a"}}, "exec: apiVersion must be one of"),
    (
        {"server": "https://x"},
        {"exec": {"command": "a", "apiVersion": V1, "interactiveMode": "Always"}},
        "interactiveMode must not be Always",
    ),
]


@pytest.mark.parametrize(("cluster", "user", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_wrong_field_is_named(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], message: str) -> None:
    """Every invalid field gives one line with the file and the field, and no secret."""
    with pytest.raises(Invalid, match=message) as caught:
        kubeconfig.load([write(tmp_path / "config", cluster, user)])
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML at line 1, column 5"),
        ("- a", "must hold an object"),
        ("current-context: x", "no context 'x'"),
        ("{}", "current-context is not set"),
        ("{current-context: x, contexts: 5}", "contexts must be a list"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", "no cluster 'y'"),
        ("{current-context: x, contexts: [{name: x}]}", "context must be an object"),
    ],
)
def test_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    """A file that is not a kubeconfig gives one line with its name."""
    path = tmp_path / "config"
    path.write_text(text)

    with pytest.raises(Invalid, match=message) as caught:
        kubeconfig.load([path])
    assert str(path) in str(caught.value)


_PARTS = (("certificate", "crt"), ("key", "key"))
