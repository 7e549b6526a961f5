"""Processes processes of the platform on one cluster: replicas, single parts, and an upgrade."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import aliquot
from aliquot.labels import INSTALLED_VERSION
from support.kubernetes.kwok_testbed import KwokTestbed
from support.kubernetes.load_balancer import LoadBalancer
from support.kubernetes.manifests import workload_manifest
from support.seeds.platform import PREFIX, Platform
from support.stores.process import ServerProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kwok")]
LEASES = ("aliquot-loops", "aliquot-scheduler")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KwokTestbed]:
    running = KwokTestbed(tmp_path_factory.mktemp("replicas"))
    yield running
    running.close()


class Processes:
    """Platform processes that are stopped at the end of a test."""

    def __init__(self, testbed: KwokTestbed) -> None:
        self._testbed = testbed
        self.all: list[Platform] = []

    def start(self, *arguments: str) -> Platform:
        platform = self._testbed.platform(f"p{next(_numbers)}", *arguments).up()
        self.all.append(platform)
        return platform

    def pair(self) -> tuple[Platform, Platform]:
        """Two complete platforms; the first is the leader."""
        first = self.start()
        wait_until(lambda: self.holders() == identities(first.server) != set(), "the first leads")
        return first, self.start()

    def stop(self) -> None:
        for platform in self.all:
            if platform.server.alive:
                assert platform.server.stop() == 0
            assert "Traceback" not in platform.server.log

    def holders(self) -> set[str]:
        """The holders of the leases; includes an empty name for a lease without holder."""
        leases = [self._testbed.get("lease", name, "runai") or {"spec": {}} for name in LEASES]
        return {lease["spec"].get("holderIdentity", "") for lease in leases}


@pytest.fixture
def processes(testbed: KwokTestbed) -> Iterator[Processes]:
    started = Processes(testbed)
    yield started
    started.stop()


@pytest.fixture
def space(testbed: KwokTestbed) -> Iterator[str]:
    """The namespace of one test; the test creates its project with `testbed.create_project`."""
    name = f"runai-team-{next(_numbers)}"
    yield name
    testbed.kubectl("delete", "workloads,pods", "--all", "-n", name, "--wait=false", "--ignore-not-found")


def identities(server: ServerProcess) -> set[str]:
    """The identities under which it has led, from its log."""
    events = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return {event["identity"] for event in events if event["event"] == "leading"}


def get(url: str, token: str = "") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def explanation(platform: Platform, job: str, space: str) -> Any:
    """The output of `aliquot explain`, without times."""
    done = platform.sh(f"aliquot explain {job} -p {space.removeprefix('runai-')} --json")
    assert done.status == 0, done
    report = json.loads(done.out)
    report.pop("decidedAt")
    report["lines"] = [line for line in report["lines"] if line["about"] != "state"]
    return report


class Watch:
    """A client that watches workloads and records how the watch ended."""

    def __init__(self, server: ServerProcess) -> None:
        path, headers = f"{PREFIX}/workloads", {"Authorization": f"Bearer {server.token}"}
        version = json.loads(get(server.url + path, server.token)[1])["metadata"]["resourceVersion"]
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self._connection.request("GET", f"{path}?watch=true&resourceVersion={version}", headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        self._failure = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._response.read()  # raises if the last chunk is missing
        except (OSError, http.client.HTTPException) as exc:
            self._failure = repr(exc)

    @property
    def open(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> str:
        """The error with which it ended; empty if none."""
        self._thread.join(60)
        assert not self.open
        self._response.close()
        self._connection.close()
        return self._failure


def test_two_behind_a_load_balancer(testbed: KwokTestbed, processes: Processes, space: str) -> None:
    """All commands work, whichever replica answers, and both give the same answers."""
    first, second = processes.pair()
    testbed.create_project(space.removeprefix("runai-"), 4)
    testbed.apply(workload_manifest("big", space, 9))
    testbed.wait_for_refusal("big", space, "no node has 9 GPUs")
    with LoadBalancer([first.server.port, second.server.port]) as balancer:
        team = space.removeprefix("runai-")
        environment = {"ALIQUOT_URL": balancer.url, "ALIQUOT_TOKEN": first.server.token}
        for line in (
            f"runai submit small -p {team} -i job -g 1",
            f"runai describe job big -p {team}",
            f"aliquot explain big -p {team}",
            f"runai delete job small -p {team}",
        ):
            done = first.sh(line, **environment)
            assert done.status == 0, (line, done)
        assert min(balancer.connections.values()) > 0
    assert not identities(second.server)
    wait_until(
        lambda: explanation(first, "big", space) == explanation(second, "big", space), "both give the same answer"
    )
    assert explanation(second, "big", space)["refusals"]


def test_replicas_share_the_admin_token(testbed: KwokTestbed, processes: Processes) -> None:
    """A start with an empty folder reads the token from the cluster; if it was deleted, it issues another."""
    first, second = processes.pair()
    assert first.server.token == second.server.token
    listed = json.loads(first.sh("aliquot token list --json").out)
    (name,) = [token["metadata"]["name"] for token in listed["items"] if token["spec"]["user"] == "admin"]
    assert first.sh(f"aliquot token delete {name}").status == 0
    third = processes.start()
    assert third.server.token != first.server.token
    assert third.sh("aliquot token list").status == 0
    assert get(f"{third.server.url}{PREFIX}/whoami", first.server.token)[0] == 401
    stored = testbed.get("secret", "aliquot-admin", "runai")["data"]["token"]
    assert base64.b64decode(stored).decode() == third.server.token


def test_leader_stops(testbed: KwokTestbed, processes: Processes, space: str) -> None:
    """It releases its leases and ends open watches cleanly, and the other one takes over."""
    first, second = processes.pair()
    leading = identities(first.server)
    watch = Watch(first.server)
    assert watch.open
    assert first.server.stop() == 0
    assert not processes.holders() & leading
    assert watch.end() == ""
    testbed.create_project(space.removeprefix("runai-"), 4)
    testbed.apply(workload_manifest("after", space, 1))
    testbed.wait_until_running("after-0-0", space)
    wait_until(lambda: processes.holders() == identities(second.server), "the other leads")


def test_each_part_alone(testbed: KwokTestbed, processes: Processes, space: str) -> None:
    """Three processes run a job together; those without the server part answer only health and metrics."""
    server, loops, scheduler = (processes.start("--parts", part) for part in ("server", "loops", "scheduler"))
    team = space.removeprefix("runai-")
    for line in (f"aliquot project create {team} --gpu 4", f"runai submit job -p {team} -i job -g 1"):
        done = server.sh(line)
        assert done.status == 0, (line, done)
    server.wait_for_phase("job", team, "Running")
    for process in (loops, scheduler):
        answers = {
            path: get(process.server.url + path, process.server.token)[0]
            for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", f"{PREFIX}/projects", f"{PREFIX}/whoami")
        }
        assert set(list(answers.values())[:3]) == {200}, answers
        assert set(list(answers.values())[3:]) == {404}, answers
    assert get(loops.server.url + "/metrics")[0] == 401


def test_upgrade(testbed: KwokTestbed, processes: Processes, space: str) -> None:
    """A start updates what an older version installed, and jobs keep running."""
    before = processes.start()
    testbed.create_project(space.removeprefix("runai-"), 4)
    testbed.apply(workload_manifest("job", space, 1))
    uid = testbed.wait_until_running("job-0-0", space)["metadata"]["uid"]
    before.wait_for_phase("job", space.removeprefix("runai-"), "Running")
    assert before.server.stop() == 0
    wanted = [_definition(testbed)["spec"], _policy_rules(testbed)]
    _make_older(testbed)
    assert [_definition(testbed)["spec"], _policy_rules(testbed)] != wanted

    after = processes.start()

    definition = _definition(testbed)
    assert [definition["spec"], _policy_rules(testbed)] == wanted
    assert definition["metadata"]["annotations"][INSTALLED_VERSION] == aliquot.__version__
    pod = testbed.get("pod", "job-0-0", space)
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (uid, "Running")
    assert after.phase("job", space.removeprefix("runai-")) == "Running"
    testbed.apply(workload_manifest("next", space, 1, preemptionLimit=3))
    testbed.wait_until_running("next-0-0", space)
    assert testbed.get("workload", "next", space)["spec"]["preemptionLimit"] == 3
    assert testbed.get("pod", "job-0-0", space)["metadata"]["uid"] == uid


def _definition(testbed: KwokTestbed) -> Any:
    return testbed.get("crd", "workloads.aliquot.dev")


def _policy_rules(testbed: KwokTestbed) -> Any:
    """The rules of the admission policy for workloads."""
    return testbed.get("validatingadmissionpolicy", "aliquot-trusted-workloads")["spec"]["validations"]


def _make_older(testbed: KwokTestbed) -> None:
    """Changes the definition and the policy as if an older version had written them."""
    field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/preemptionLimit"
    stamp = f"/metadata/annotations/{INSTALLED_VERSION.replace('/', '~1')}"
    changes = [{"op": "remove", "path": field}, {"op": "replace", "path": stamp, "value": "0.0.1"}]
    testbed.kubectl("patch", "crd", "workloads.aliquot.dev", "--type=json", "-p", json.dumps(changes))
    looser = [{"op": "replace", "path": "/spec/validations", "value": [{"expression": "true"}]}]
    testbed.kubectl(
        "patch", "validatingadmissionpolicy", "aliquot-trusted-workloads", "--type=json", "-p", json.dumps(looser)
    )
