"""What users of a cluster expect of its scheduler, tested with their own tools. The nodes are KWOK's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from support.kubernetes.kwok_testbed import GPUS, NODES, KwokTestbed, table_rows
from support.kubernetes.manifests import claim, pod_manifest, storage_class, training, volume, workload_manifest
from support.seeds.platform import Platform
from support.waiting import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("kwok")]
NewProject = Callable[[float], str]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KwokTestbed]:
    running = KwokTestbed(tmp_path_factory.mktemp("users"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def kwok_platform(testbed: KwokTestbed) -> Iterator[Platform]:
    running = testbed.platform("platform").up()
    yield running
    assert "Traceback" not in running.server.log


@pytest.fixture
def new_project(testbed: KwokTestbed, kwok_platform: Platform) -> Iterator[NewProject]:
    """Creates a project with a quota and returns its namespace; everything in it is deleted after the test."""
    namespaces = []

    def create(gpu: float) -> str:
        namespaces.append(testbed.create_project(f"team-{next(_numbers)}", gpu))
        return namespaces[-1]

    yield create
    for namespace in namespaces:
        testbed.delete_all(namespace)


@pytest.fixture
def volumes(testbed: KwokTestbed) -> str:
    """Four volumes of a storage class, bound when a pod needs one; returns the class's name."""
    name = f"local-{next(_numbers)}"
    testbed.apply(storage_class(name), *(volume(f"{name}-{number}", name) for number in range(4)))
    return name


@pytest.fixture
def nodes(testbed: KwokTestbed) -> Iterator[None]:
    """Undoes what a test does to nodes."""
    yield
    testbed.kubectl("uncordon", *NODES)
    for name in NODES:
        if any(taint["key"] == "runai" for taint in testbed.get("node", name)["spec"].get("taints", ())):
            testbed.kubectl("taint", "nodes", name, "runai-")


# --- placement


def test_node_types(testbed: KwokTestbed, kwok_platform: Platform, new_project: NewProject) -> None:
    """A job that asks for a node type runs on a node with that label; if there is none it waits, with the reason."""
    space = new_project(4)
    team = space.removeprefix("runai-")
    testbed.kubectl("label", "node", "dgx1-2", "run.ai/type=dgx-2", "--overwrite")
    for name, kind in (("here", "dgx-2"), ("nowhere", "dgx-9")):
        done = kwok_platform.sh(f"runai submit {name} -p {team} -i job -g 1 --node-type {kind}")
        assert done.status == 0, done
    testbed.wait_until_running("here-0-0", space, "dgx1-2")
    testbed.wait_for_refusal("nowhere", space, "3 nodes without the labels it needs")
    assert "without the labels it needs" in kwok_platform.sh(f"runai describe job nowhere -p {team}").out


def test_cordoned(testbed: KwokTestbed, new_project: NewProject, nodes: None) -> None:
    """A cordoned node gets no new jobs, and its running jobs stay."""
    space = new_project(3 * GPUS)
    testbed.apply(workload_manifest("before", space, 1))
    before = testbed.wait_until_running("before-0-0", space)
    testbed.kubectl("cordon", before["spec"]["nodeName"])
    testbed.apply(*(workload_manifest(f"after-{number}", space, GPUS - 1) for number in range(3)))
    wait_until(lambda: set(testbed.nodes_of_pods(space).values()) == {*NODES, ""}, "the others are full")
    waiting = next(name for name, node in testbed.nodes_of_pods(space).items() if not node)
    testbed.wait_for_refusal(waiting.removesuffix("-0-0"), space, "1 node tainted node.kubernetes.io/unschedulable")
    assert testbed.get("pod", "before-0-0", space)["metadata"]["uid"] == before["metadata"]["uid"]


def test_drained(testbed: KwokTestbed, new_project: NewProject, nodes: None) -> None:
    """After `kubectl taint nodes NODE runai=drain:NoExecute` training continues elsewhere, and its history says why."""
    space = new_project(GPUS)
    testbed.apply(workload_manifest("train", space, 2))
    first = testbed.wait_until_running("train-0-0", space)
    node = first["spec"]["nodeName"]
    testbed.kubectl("taint", "nodes", node, "runai=drain:NoExecute")

    def moved() -> bool:
        current = testbed.get("pod", "train-0-0", space)
        return current is not None and current["spec"].get("nodeName", node) != node and _phase(current) == "Running"

    wait_until(moved, "it runs on another node")
    stops = testbed.get("workload", "train", space)["status"]["interruptions"]
    assert [(stop["reason"], stop["pod"]) for stop in stops] == [("disrupted", first["metadata"]["uid"])]
    assert f"the cluster stopped it on node {node}: " in stops[0]["message"]


# --- pods without a workload


def test_plain_pods(testbed: KwokTestbed, new_project: NewProject) -> None:
    """Any pod that names the scheduler is bound, counts against its project, and has a condition if it cannot run."""
    space = new_project(4)
    testbed.apply(pod_manifest("fits", space, 2), pod_manifest("too-big", space, GPUS + 1))
    testbed.wait_until_running("fits", space)

    def charged() -> bool:
        listed = table_rows(testbed.kubectl("get", "project", space.removeprefix("runai-")))
        return listed[0]["GPUS"] == "2"

    wait_until(charged, "the project holds 2 GPUs")
    sentence = "no node has 9 GPUs; the largest of the 3 nodes have 8 each"
    wait_until(lambda: sentence in testbed.kubectl("describe", "pod", "too-big", "-n", space), "describe says why")
    conditions = testbed.get("pod", "too-big", space)["status"]["conditions"]
    (scheduled,) = [condition for condition in conditions if condition["type"] == "PodScheduled"]
    assert (scheduled["status"], scheduled["reason"], scheduled["message"]) == ("False", "Unschedulable", sentence)
    assert "placed on dgx1-" in testbed.kubectl("describe", "pod", "fits", "-n", space)


def test_pods_of_other_schedulers(testbed: KwokTestbed, kwok_platform: Platform, new_project: NewProject) -> None:
    """They keep their GPUs, and are never evicted for pending jobs."""
    space = new_project(3 * GPUS)
    testbed.apply(pod_manifest("theirs", "default", GPUS, "default-scheduler"))
    try:
        testbed.bind("theirs", "default", "dgx1-1")
        before = testbed.wait_until_running("theirs", "default", "dgx1-1")
        testbed.apply(*(workload_manifest(f"job-{number}", space, GPUS) for number in range(3)))
        wait_until(lambda: set(testbed.nodes_of_pods(space).values()) == {"dgx1-2", "dgx1-3", ""}, "two are bound")
        waiting = next(name for name, node in testbed.nodes_of_pods(space).items() if not node)
        testbed.wait_for_refusal(waiting.removesuffix("-0-0"), space, "no node has room for 8 GPUs now")
        after = testbed.get("pod", "theirs", "default")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert "deletionTimestamp" not in after["metadata"]
        assert "8/8" in kwok_platform.sh("runai list nodes dgx1-1").out
    finally:
        testbed.kubectl("delete", "pod", "theirs", "--ignore-not-found")


# --- Services and volumes


def test_service(testbed: KwokTestbed, kwok_platform: Platform, new_project: NewProject) -> None:
    """A job with ports has a Service of its name, which is deleted with the job."""
    space = new_project(1)
    command = f"runai submit web -p {space.removeprefix('runai-')} -i job -g 1 --interactive"
    done = kwok_platform.sh(f"{command} --service-type nodeport --port 30123:8080")
    assert done.status == 0, done
    testbed.wait_until_running("web-0-0", space)
    spec = testbed.get("service", "web", space)["spec"]
    (port,) = spec["ports"]
    assert (spec["type"], port["port"], port["targetPort"], port["nodePort"]) == ("NodePort", 8080, 8080, 30123)
    labels = testbed.get("pod", "web-0-0", space)["metadata"]["labels"]
    assert spec["selector"].items() <= labels.items()
    testbed.kubectl("delete", "workload", "web", "-n", space)
    wait_until(lambda: testbed.get("service", "web", space) is None, "its service is gone")


def test_missing_claim(testbed: KwokTestbed, kwok_platform: Platform, new_project: NewProject, volumes: str) -> None:
    """A job that mounts a missing claim waits, with the reason; once the claim exists the job runs."""
    space = new_project(1)
    team = space.removeprefix("runai-")
    done = kwok_platform.sh(f"runai submit pvc-test -p {team} --pvc test:/tmp/pvc1mount -i job -g 1")
    assert done.status == 0, done
    testbed.wait_for_refusal("pvc-test", space, "volume claim test does not exist; create it and this starts")
    testbed.wait_for_events(space, "workload/pvc-test", "Unschedulable")
    assert "volume claim test does not exist" in kwok_platform.sh(f"runai describe job pvc-test -p {team}").out
    assert "volume claim test does not exist" in testbed.kubectl("describe", "workload", "pvc-test", "-n", space)
    testbed.apply(claim("test", space, volumes))
    running = testbed.wait_until_running("pvc-test-0-0", space)
    assert running["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/tmp/pvc1mount"
    testbed.kubectl("delete", "workload", "pvc-test", "-n", space)
    assert testbed.get("pvc", "test", space)["status"]["phase"] == "Bound"


def test_new_claims(testbed: KwokTestbed, kwok_platform: Platform, new_project: NewProject, volumes: str) -> None:
    """A new claim is created and deleted with its job; an ephemeral one is deleted at each stop and created again."""
    space = new_project(1)
    team = space.removeprefix("runai-")
    new = f"--new-pvc storageclass={volumes},size=1Gi,path"
    done = kwok_platform.sh(f"runai submit data -p {team} -i job -g 1 {new}=/data {new}=/scratch,ephemeral")
    assert done.status == 0, done
    testbed.wait_until_running("data-0-0", space)
    data, scratch = (testbed.get("pvc", f"data-pvc-{index}", space)["metadata"]["uid"] for index in range(2))

    assert kwok_platform.sh(f"runai suspend data -p {team}").status == 0
    wait_until(lambda: testbed.get("pvc", "data-pvc-1", space) is None, "the ephemeral one is gone")
    assert testbed.get("pvc", "data-pvc-0", space)["metadata"]["uid"] == data
    assert kwok_platform.sh(f"runai resume data -p {team}").status == 0
    testbed.wait_until_running("data-0-0", space)
    assert testbed.get("pvc", "data-pvc-0", space)["metadata"]["uid"] == data
    assert testbed.get("pvc", "data-pvc-1", space)["metadata"]["uid"] != scratch

    testbed.kubectl("delete", "workload", "data", "-n", space)
    wait_until(lambda: not testbed.kubectl("get", "pvc", "-n", space, "-o", "name"), "its claims are gone")


def test_reasons_of_pods(testbed: KwokTestbed, new_project: NewProject) -> None:
    """The pod of a pending job has the reason in its condition, where autoscalers look, until it runs."""
    space = new_project(GPUS)
    testbed.kubectl("cordon", *NODES)
    try:
        testbed.apply(workload_manifest("waits", space, 1))
        wait_until(lambda: _scheduled(testbed, space).get("status") == "False", "its pod has the condition")
        condition = _scheduled(testbed, space)
        assert condition["reason"] == "Unschedulable"
        assert "3 nodes tainted node.kubernetes.io/unschedulable" in condition["message"]
    finally:
        testbed.kubectl("uncordon", *NODES)
    testbed.wait_until_running("waits-0-0", space)
    assert _scheduled(testbed, space)["status"] == "True"


def _scheduled(testbed: KwokTestbed, space: str) -> dict[str, str]:
    conditions = (testbed.get("pod", "waits-0-0", space) or {"status": {}})["status"].get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


# --- kubectl only


def test_manifests(testbed: KwokTestbed, new_project: NewProject) -> None:
    """Our kinds and those of Run:ai can be applied, listed and deleted like any other."""
    space = new_project(4)
    testbed.apply(workload_manifest("ours", space, 1), training("theirs", space, 2))
    for name in ("ours", "theirs"):
        testbed.wait_until_running(f"{name}-0-0", space)

    def listed() -> dict[str, dict[str, str]]:
        rows = table_rows(testbed.kubectl("get", "projects,workloads,tw", "-A"))
        return {row["NAME"]: row for row in rows if row.get("NAMESPACE", space) == space}

    project = f"project.aliquot.dev/{space.removeprefix('runai-')}"
    wait_until(lambda: listed()[project]["GPUS"] == "3", "the project holds 3 GPUs")
    rows = listed()
    assert (rows[project]["GPU QUOTA"], rows[project]["PHASE"]) == ("4", "Ready")
    ours, translated, theirs = (
        rows[f"{kind}/{name}"]
        for kind, name in (
            ("workload.aliquot.dev", "ours"),
            ("workload.aliquot.dev", "theirs"),
            ("trainingworkload.run.ai", "theirs"),
        )
    )
    assert (ours["TYPE"], ours["PHASE"], ours["GPUS"]) == ("training", "Running", "1")
    assert (translated["TYPE"], translated["PHASE"], translated["GPUS"]) == ("training", "Running", "2")
    assert (theirs["PHASE"], theirs["GPUS"]) == ("Running", "2")

    testbed.kubectl("delete", "workload/ours", "tw/theirs", "-n", space)
    wait_until(lambda: not testbed.nodes_of_pods(space), "their pods are gone")
    assert not testbed.kubectl("get", "workloads", "-n", space, "-o", "name")


@pytest.mark.parametrize("make", [workload_manifest, pod_manifest], ids=["workloads", "plain pods"])
def test_events(
    testbed: KwokTestbed, new_project: NewProject, make: Callable[[str, str, int], dict[str, object]]
) -> None:
    """`kubectl get events` shows which jobs were bound, which are pending, and which were evicted for which."""
    lender, borrower = new_project(GPUS), new_project(0)
    names = [f"job-{number}" for number in range(3)]
    testbed.apply(*(make(name, borrower, GPUS) for name in names))
    wait_until(lambda: set(testbed.nodes_of_pods(borrower).values()) == set(NODES), "all GPUs are borrowed")
    testbed.apply(workload_manifest("due", lender, GPUS), workload_manifest("greedy", lender, GPUS + 1))
    testbed.wait_until_running("due-0-0", lender)
    testbed.wait_for_events(lender, "pod/due-0-0", "Scheduled", "Started")
    testbed.wait_for_events(lender, "workload/greedy", "Unschedulable")
    kind, suffix = ("pod", "") if make is pod_manifest else ("workload", "-0-0")
    (stopped,) = [name for name in names if (f"{kind}/{name}", "Evicted") in _events_with(testbed, borrower, "Evicted")]
    testbed.wait_for_events(borrower, f"pod/{stopped}{suffix}", "Scheduled")
    if kind == "workload":
        testbed.wait_for_events(borrower, f"workload/{stopped}", "Unschedulable")
    events = testbed.kubectl("get", "events", "-n", borrower, "--field-selector=reason=Evicted", "--no-headers")
    assert f"{lender.removeprefix('runai-')}/due" in events


def _events_with(testbed: KwokTestbed, namespace: str, reason: str) -> set[tuple[str, str]]:
    wait_until(
        lambda: any(event_reason == reason for _, event_reason in testbed.events(namespace)), f"an event {reason}"
    )
    return testbed.events(namespace)


def _phase(pod: dict[str, dict[str, str]]) -> str:
    return pod["status"].get("phase", "")
