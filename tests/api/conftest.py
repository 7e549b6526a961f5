"""The servers of these tests: a test that takes `api` runs on SQLite and on Kubernetes, unchanged."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from api.accounts import Accounts, TwoProjects
from api.http_client import Api, Json, named, unique
from support.kubernetes.cluster import Cluster
from support.stores.process import ServerProcess

# All tests that need a cluster go to one worker, so that one cluster is started for them.
ON_KUBERNETES = pytest.param("kubernetes", marks=[pytest.mark.kube, pytest.mark.xdist_group("kube")])


@pytest.fixture(scope="session", params=["sqlite", ON_KUBERNETES])
def api_server(request: pytest.FixtureRequest) -> ServerProcess:
    """A real `aliquot up` on one of the store drivers."""
    running = request.getfixturevalue("server" if request.param == "sqlite" else "kube_server")
    assert isinstance(running, ServerProcess)
    return running


@pytest.fixture(scope="session")
def kube_server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`aliquot up --kubeconfig` on the session's cluster. It installs our kinds itself."""
    folder = tmp_path_factory.mktemp("kube-server") / "data"
    running = ServerProcess(folder, "--api-only", "--kubeconfig", str(cluster.kubeconfig)).start()
    yield running
    running.stop()


@pytest.fixture
def api(api_server: ServerProcess) -> Iterator[Api]:
    """A client with the administrator's token."""
    api = Api(api_server.url, api_server.token)
    yield api
    api.close()


@pytest.fixture
def accounts(api: Api) -> Accounts:
    return Accounts(api)


@pytest.fixture
def namespace_path(api: Api) -> str:
    """Path of a namespace that no other test uses."""
    name = unique("n")
    api.post("namespaces", named(name)).ok(201)
    return f"namespaces/{name}"


@pytest.fixture
def out_of_reach(api: Api) -> str:
    """A version that this store cannot watch from: too old, or never given."""
    return "1" if api.get("whoami").ok()["server"]["flavour"] == "kubernetes" else "999999999"


@pytest.fixture(params=["sqlite", ON_KUBERNETES])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may stop."""
    arguments = ["--api-only"]
    if request.param == "kubernetes":
        arguments = ["--api-only", "--kubeconfig", str(request.getfixturevalue("cluster").kubeconfig)]
    running = ServerProcess(tmp_path / "data", *arguments).start()
    yield running
    running.stop()


@pytest.fixture
def stored_user(api_server: ServerProcess, request: pytest.FixtureRequest) -> Callable[[str], Json]:
    """Reads a user's spec from the store itself, with the fields that the server hides."""

    def read(name: str) -> Json:
        database = api_server.folder / "aliquot.db"
        if database.exists():
            with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
                row = db.execute("SELECT document FROM objects WHERE kind = 'User' AND name = ?", (name,)).fetchone()
                return dict(json.loads(row[0])["spec"])
        cluster = request.getfixturevalue("cluster")
        return dict(json.loads(cluster.kubectl("get", "user.aliquot.dev", name, "-o", "json"))["spec"])

    return read


@pytest.fixture(scope="session")
def two_projects(api_server: ServerProcess) -> Iterator[TwoProjects]:
    """Two projects in two departments, and users of every role."""
    api = Api(api_server.url, api_server.token)
    yield TwoProjects(Accounts(api))
    api.close()
