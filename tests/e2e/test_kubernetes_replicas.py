"""Several processes of ours on one cluster: replicas, each part alone, and one that follows an older version."""

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
from support.kubernetes.manifests import workload
from support.seeds.platform import PREFIX, Platform, until
from support.stores.process import ServerProcess

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kwok")]
LEASES = ("aliquot-loops", "aliquot-scheduler")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KwokTestbed]:
    made = KwokTestbed(tmp_path_factory.mktemp("replicas"))
    yield made
    made.close()


class Several:
    """Processes that are stopped at the end of a test, and what a test asks of them."""

    def __init__(self, testbed: KwokTestbed) -> None:
        self._site = testbed
        self.all: list[Platform] = []

    def start(self, *arguments: str) -> Platform:
        made = self._site.platform(f"p{next(_numbers)}", *arguments).up()
        self.all.append(made)
        return made

    def pair(self) -> tuple[Platform, Platform]:
        """Two of everything, of which the first leads."""
        first = self.start()
        until(lambda: self.holders() == identities(first.server) != set(), "the first leads")
        return first, self.start()

    def stop(self) -> None:
        for one in self.all:
            if one.server.alive:
                assert one.server.stop() == 0
            assert "Traceback" not in one.server.log

    def holders(self) -> set[str]:
        """Who leads, by the leases; one that nobody holds is in it too."""
        found = [self._site.get("lease", name, "runai") or {"spec": {}} for name in LEASES]
        return {one["spec"].get("holderIdentity", "") for one in found}


@pytest.fixture
def several(testbed: KwokTestbed) -> Iterator[Several]:
    made = Several(testbed)
    yield made
    made.stop()


@pytest.fixture
def space(testbed: KwokTestbed) -> Iterator[str]:
    """The namespace that a test has for itself; its project is made by `testbed.project`."""
    name = f"runai-team-{next(_numbers)}"
    yield name
    testbed.kubectl("delete", "workloads,pods", "--all", "-n", name, "--wait=false", "--ignore-not-found")


def identities(server: ServerProcess) -> set[str]:
    """The names under which it has led, by its log."""
    said = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return {one["identity"] for one in said if one["event"] == "leading"}


def ask(url: str, token: str = "") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def explained(platform: Platform, job: str, space: str) -> Any:
    """What `aliquot explain` says, less how long it has been so."""
    done = platform.sh(f"aliquot explain {job} -p {space.removeprefix('runai-')} --json")
    assert done.status == 0, done
    told = json.loads(done.out)
    told.pop("decidedAt")
    told["lines"] = [line for line in told["lines"] if line["about"] != "state"]
    return told


class Watch:
    """A client that watches workloads, and how that ended."""

    def __init__(self, server: ServerProcess) -> None:
        path, headers = f"{PREFIX}/workloads", {"Authorization": f"Bearer {server.token}"}
        version = json.loads(ask(server.url + path, server.token)[1])["metadata"]["resourceVersion"]
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self._connection.request("GET", f"{path}?watch=true&resourceVersion={version}", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self._failure = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._answer.read()  # raises when the last piece never came
        except (OSError, http.client.HTTPException) as exc:
            self._failure = repr(exc)

    @property
    def open(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> str:
        """How it ended: empty for well."""
        self._thread.join(60)
        assert not self.open
        self._answer.close()
        self._connection.close()
        return self._failure


def test_two_behind_one_address(testbed: KwokTestbed, several: Several, space: str) -> None:
    """Whichever answers: all commands work, and every answer is the same."""
    first, second = several.pair()
    testbed.create_project(space.removeprefix("runai-"), 4)
    testbed.apply(workload("big", space, 9))
    testbed.wait_for_refusal("big", space, "no node has 9 GPUs")
    with LoadBalancer([first.server.port, second.server.port]) as one:
        team = space.removeprefix("runai-")
        there = {"ALIQUOT_URL": one.url, "ALIQUOT_TOKEN": first.server.token}
        for line in (
            f"runai submit small -p {team} -i job -g 1",
            f"runai describe job big -p {team}",
            f"aliquot explain big -p {team}",
            f"runai delete job small -p {team}",
        ):
            done = first.sh(line, **there)
            assert done.status == 0, (line, done)
        assert min(one.connections.values()) > 0
    assert not identities(second.server)
    until(lambda: explained(first, "big", space) == explained(second, "big", space), "both say the same")
    assert explained(second, "big", space)["refusals"]


def test_one_token_of_the_administrator(testbed: KwokTestbed, several: Several) -> None:
    """A start on an empty folder finds it in the cluster; when it was deleted, the next start issues another."""
    first, second = several.pair()
    assert first.server.token == second.server.token
    listed = json.loads(first.sh("aliquot token list --json").out)
    (name,) = [one["metadata"]["name"] for one in listed["items"] if one["spec"]["user"] == "admin"]
    assert first.sh(f"aliquot token delete {name}").status == 0
    third = several.start()
    assert third.server.token != first.server.token
    assert third.sh("aliquot token list").status == 0
    assert ask(f"{third.server.url}{PREFIX}/whoami", first.server.token)[0] == 401
    kept = testbed.get("secret", "aliquot-admin", "runai")["data"]["token"]
    assert base64.b64decode(kept).decode() == third.server.token


def test_leader_stops(testbed: KwokTestbed, several: Several, space: str) -> None:
    """It gives up what it leads, ends what others read of it as one ends an answer, and the other one goes on."""
    first, second = several.pair()
    leading = identities(first.server)
    watch = Watch(first.server)
    assert watch.open
    assert first.server.stop() == 0
    assert not several.holders() & leading
    assert watch.end() == ""
    testbed.create_project(space.removeprefix("runai-"), 4)
    testbed.apply(workload("after", space, 1))
    testbed.wait_until_running("after-0-0", space)
    until(lambda: several.holders() == identities(second.server), "the other leads")


def test_each_part_alone(testbed: KwokTestbed, several: Several, space: str) -> None:
    """Three processes run a job together; those that only decide answer only how they are."""
    server, loops, scheduler = (several.start("--parts", part) for part in ("server", "loops", "scheduler"))
    team = space.removeprefix("runai-")
    for line in (f"aliquot project create {team} --gpu 4", f"runai submit job -p {team} -i job -g 1"):
        done = server.sh(line)
        assert done.status == 0, (line, done)
    server.wait_for_phase("job", team, "Running")
    for quiet in (loops, scheduler):
        answers = {
            path: ask(quiet.server.url + path, quiet.server.token)[0]
            for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", f"{PREFIX}/projects", f"{PREFIX}/whoami")
        }
        assert set(list(answers.values())[:3]) == {200}, answers
        assert set(list(answers.values())[3:]) == {404}, answers
    assert ask(loops.server.url + "/metrics")[0] == 401


def test_upgrade(testbed: KwokTestbed, several: Several, space: str) -> None:
    """What an older version installed is brought up to date by the next start, and jobs run on meanwhile."""
    before = several.start()
    testbed.create_project(space.removeprefix("runai-"), 4)
    testbed.apply(workload("job", space, 1))
    uid = testbed.wait_until_running("job-0-0", space)["metadata"]["uid"]
    before.wait_for_phase("job", space.removeprefix("runai-"), "Running")
    assert before.server.stop() == 0
    wanted = [_definition(testbed)["spec"], _rules(testbed)]
    _make_older(testbed)
    assert [_definition(testbed)["spec"], _rules(testbed)] != wanted

    after = several.start()

    definition = _definition(testbed)
    assert [definition["spec"], _rules(testbed)] == wanted
    assert definition["metadata"]["annotations"][INSTALLED_VERSION] == aliquot.__version__
    pod = testbed.get("pod", "job-0-0", space)
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (uid, "Running")
    assert after.phase("job", space.removeprefix("runai-")) == "Running"
    testbed.apply(workload("next", space, 1, preemptionLimit=3))
    testbed.wait_until_running("next-0-0", space)
    assert testbed.get("workload", "next", space)["spec"]["preemptionLimit"] == 3
    assert testbed.get("pod", "job-0-0", space)["metadata"]["uid"] == uid


def _definition(testbed: KwokTestbed) -> Any:
    return testbed.get("crd", "workloads.aliquot.dev")


def _rules(testbed: KwokTestbed) -> Any:
    """What the cluster checks of workloads for us."""
    return testbed.get("validatingadmissionpolicy", "aliquot-trusted-workloads")["spec"]["validations"]


def _make_older(testbed: KwokTestbed) -> None:
    """As if written by a version that knew less."""
    field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/preemptionLimit"
    stamp = f"/metadata/annotations/{INSTALLED_VERSION.replace('/', '~1')}"
    changes = [{"op": "remove", "path": field}, {"op": "replace", "path": stamp, "value": "0.0.1"}]
    testbed.kubectl("patch", "crd", "workloads.aliquot.dev", "--type=json", "-p", json.dumps(changes))
    looser = [{"op": "replace", "path": "/spec/validations", "value": [{"expression": "true"}]}]
    testbed.kubectl(
        "patch", "validatingadmissionpolicy", "aliquot-trusted-workloads", "--type=json", "-p", json.dumps(looser)
    )
