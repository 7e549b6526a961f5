"""The submissions of the customers' documents, verbatim, and the workload that each creates."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from aliquot.cli.main import runai
from support.cli.environment import CliEnvironment

QUICKSTART = "gcr.io/run-ai-demo/quickstart"
NETAPP = (
    'runai submit netapp1 -i netapp/tensorflow-tf1-py3:20.01.0 --local-image --large-shm -v /mnt:/mnt -v /tmp:/tmp '
    '--command python --args "/netapp/scripts/run.py" '
    '--args "--dataset_dir=/mnt/mount_0/dataset/imagenet/imagenet_original/" '
    '--args "--num_mounts=2" --args "--dgx_version=dgx1" --args "--num_devices=1" -g 1'
)  # fmt: skip
SUBMITS: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "runai project set team-a runai submit hyper1 -i gcr.io/run-ai-demo/quickstart -g 1",
        "team-a", "hyper1",
        {"type": "training", "image": QUICKSTART, "compute": {"gpu": 1}},
    ),
    (
        "runai submit build1 -i python -g 1 --interactive --command sleep --args infinity",
        "team-a", "build1",
        {"type": "interactive", "image": "python", "compute": {"gpu": 1}, "command": ["sleep"], "args": ["infinity"]},
    ),
    (
        'runai submit test-ingress -i jupyter/base-notebook -g 1 --interactive --service-type=ingress --port 8888 '
        '--args="--NotebookApp.base_url=test-ingress" --command=start-notebook.sh',
        "team-a", "test-ingress",
        {
            "type": "interactive", "image": "jupyter/base-notebook", "compute": {"gpu": 1},
            "command": ["start-notebook.sh"], "args": ["--NotebookApp.base_url=test-ingress"],
            "serviceType": "ingress", "ports": [{"container": 8888}],
        },
    ),
    (
        NETAPP, "team-a", "netapp1",
        {
            "type": "training", "image": "netapp/tensorflow-tf1-py3:20.01.0", "imagePullPolicy": "Never",
            "compute": {"gpu": 1, "largeShm": True}, "command": ["python"],
            "args": [
                "/netapp/scripts/run.py", "--dataset_dir=/mnt/mount_0/dataset/imagenet/imagenet_original/",
                "--num_mounts=2", "--dgx_version=dgx1", "--num_devices=1",
            ],
            "storage": {
                "hostPath": [{"path": "/mnt", "mountPath": "/mnt"}, {"path": "/tmp", "mountPath": "/tmp"}],
            },
        },
    ),
    (
        "runai submit pvc-test -p team-a --pvc test:/tmp/pvc1mount -i gcr.io/run-ai-demo/quickstart -g 1",
        "team-a", "pvc-test",
        {
            "type": "training", "image": QUICKSTART, "compute": {"gpu": 1},
            "storage": {"pvc": [{"claimName": "test", "path": "/tmp/pvc1mount", "existing": True}]},
        },
    ),
    (
        "runai submit frac03-3 -i gcr.io/run-ai-demo/quickstart -g 0.3",
        "team-a", "frac03-3",
        {"type": "training", "image": QUICKSTART, "compute": {"gpu": 0.3}},
    ),
    (
        "runai submit myjob --large-shdm -e HOSTNAME=dgx1 -v /raid/public/my_datasets:/root/dataset "
        "-i nvcr.io/nvidia/pytorch",
        "team-a", "myjob",
        {
            "type": "training", "image": "nvcr.io/nvidia/pytorch", "compute": {"largeShm": True},
            "environment": [{"name": "HOSTNAME", "value": "dgx1"}],
            "storage": {"hostPath": [{"path": "/raid/public/my_datasets", "mountPath": "/root/dataset"}]},
        },
    ),
    (
        'runai submit a-1-1-jupyter -i jupyter/base-notebook -g 1 --interactive --service-type=ingress --port 8888 '
        '--args="--NotebookApp.base_url=team-a-test-ingress" --command=start-notebook.sh -p team-a',
        "team-a", "a-1-1-jupyter",
        {
            "type": "interactive", "image": "jupyter/base-notebook", "compute": {"gpu": 1},
            "command": ["start-notebook.sh"], "args": ["--NotebookApp.base_url=team-a-test-ingress"],
            "serviceType": "ingress", "ports": [{"container": 8888}],
        },
    ),
    (
        "runai submit b-1-g06 -i gcr.io/run-ai-demo/quickstart -g 0.6 --interactive -p team-b",
        "team-b", "b-1-g06",
        {"type": "interactive", "image": QUICKSTART, "compute": {"gpu": 0.6}},
    ),
    (
        "runai submit d-1-gggg -i gcr.io/run-ai-demo/quickstart -g 4 -p team-d",
        "team-d", "d-1-gggg",
        {"type": "training", "image": QUICKSTART, "compute": {"gpu": 4}},
    ),
]  # fmt: skip


@pytest.fixture
def teams(cli: CliEnvironment) -> CliEnvironment:
    for name in ("team-a", "team-b", "team-d", "user-agm"):
        cli.create_project(name)
    cli.run_runai("config project team-a")
    return cli


def _run(cli: CliEnvironment, line: str) -> Any:
    return cli.invoke(*shlex.split(line)[1:], program=runai)


@pytest.mark.parametrize("line, project, name, spec", SUBMITS, ids=[name for _, _, name, _ in SUBMITS])
def test_a_submission(
    teams: CliEnvironment, monkeypatch: pytest.MonkeyPatch, line: str, project: str, name: str, spec: dict[str, Any]
) -> None:
    """The workload has the expected spec, with the user of this machine."""
    monkeypatch.setenv("LOGNAME", "yaron")
    result = _run(teams, line)
    assert result.exit_code == 0, result.output
    workload = teams.get("workload", name, f"runai-{project}")
    assert workload["spec"] == {"user": "yaron", **spec}
    assert workload["metadata"]["annotations"] == {"aliquot.dev/created-by": "cli"}


def test_a_template(teams: CliEnvironment) -> None:
    """--template sets the values that no flag sets."""
    values = {"image": "python", "compute": {"gpu": 2, "cpu": 4}, "environment": [{"name": "A", "value": "1"}]}
    teams.create("namespace", "runai")
    teams.create("template", "batch-ops", "runai", spec={"values": values})
    teams.run_runai("submit x -g 1 -e B=2 --template batch_ops")
    spec = teams.get("workload", "x", "runai-team-a")["spec"]
    assert (spec["image"], spec["compute"], spec["template"]) == ("python", {"gpu": 1, "cpu": 4}, "batch-ops")
    assert spec["environment"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert "--template: template 'ops' does not exist" in teams.invoke_runai("submit y --template ops").stderr


@pytest.mark.parametrize(
    "line",
    [
        "runai list",
        "runai get hyper1",
        "runai list -A",
        "runai list jobs",
        "runai describe job hyper1 -p team-a",
        "runai delete job hyper1",
        "runai delete hyper1",
        "runai delete -p team-a hyper1",
    ],
)
def test_commands_after_a_submission(teams: CliEnvironment, line: str) -> None:
    teams.run_runai("submit hyper1 -i python -g 1")
    result = _run(teams, line)
    assert result.exit_code == 0, result.output
    assert "hyper1" in result.stdout


def test_several_jobs_at_once(teams: CliEnvironment) -> None:
    for name in ("d-1-gggg", "d-2-gg", "d-3-gg"):
        teams.run_runai(f"submit {name} -i python -p team-d")
    out = teams.run_runai("delete -p team-d d-1-gggg d-2-gg d-3-gg")
    assert out.splitlines() == [f"Job {name} deleted successfully." for name in ("d-1-gggg", "d-2-gg", "d-3-gg")]
