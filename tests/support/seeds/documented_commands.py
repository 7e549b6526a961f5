"""The first commands of the customer's documents, verbatim, and the output that they must print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from support.seeds.platform import USER, CommandResult, Platform, normalize
from support.waiting import wait_until

COLUMNS_2020 = "NAME  STATUS  AGE  NODE  IMAGE  TYPE  PROJECT  USER  GPUs  CREATED BY CLI  SERVICE URL(S)"
COLUMNS_2023 = (
    "NAME  STATUS  AGE  NODE  IMAGE  TYPE  PROJECT  USER  GPUs Allocated (Requested)  PODs Running (Pending)  "
    "SERVICE URL(S)"
)
QUICKSTART = "gcr.io/run-ai-demo/quickstart"

Wait = Callable[[Platform], None]


def no_wait(platform: Platform) -> None:
    return


@dataclass(frozen=True)
class Step:
    """A command with its input, output and exit status, and a condition to wait for before it runs."""

    command: str
    out: str | None = None  # None: compare with `lines` instead
    err: str = ""
    typed: str = ""
    status: int = 0
    lines: tuple[str, ...] = ()  # patterns of lines that the output contains, in this order
    wait_for: Wait = no_wait
    ended_jobs: frozenset[str] = field(default_factory=frozenset)  # the jobs that the command ends


def job_runs(name: str, project: str) -> Wait:
    return lambda platform: platform.wait_for_phase(name, project, "Running")


def job_is_gone(name: str, project: str) -> Wait:
    return lambda platform: platform.wait_until_gone(name, project)


def has_trained(name: str) -> Wait:
    """Wait until the first epoch is over, so that its output is in the log."""

    def trained(platform: Platform) -> None:
        wait_until(lambda: "val_accuracy" in platform.sh(f"runai logs {name}").out, f"an epoch of {name}")

    return trained


def submit_output(name: str, project: str) -> str:
    return (
        f"Job {name} submitted successfully.\n"
        f"You can check the status of the job by running:\n    runai describe job {name} -p {project}\n"
    )


def describe_lines(name: str, project: str, kind: str, gpus: str) -> tuple[str, ...]:
    """The lines of section 5.3, in their order."""
    return (
        f"NAME: {name}",
        f"NAMESPACE: runai-{project}",
        f"TYPE: {kind}",
        "STATUS: Running",
        "TRAINING DURATION: <age>",
        f"GPUS: {gpus}",
        f"TOTAL REQUESTED GPUS: {gpus}",
        f"ALLOCATED GPUS: {gpus}",
        "RUNNING PODS: 1",
        "PENDING PODS: 0",
        "PARALLELISM: 1",
        "COMPLETIONS: 1",
        "SUCCEEDED PODS: 0",
        "FAILED PODS: 0",
        "IS DISTRIBUTED WORKLOAD: false",
        "CREATED BY CLI: true",
        r"SERVICE URL\(S\):",
        "",
        "Pods:",
        "POD  STATUS  TYPE  AGE  NODE",
        rf"{name}-0-0  RUNNING  {kind}  <age>  dgx1-1/127\.0\.0\.1",
        "",
        "Events:",
        "SOURCE  TYPE  AGE  MESSAGE",
        rf"pod/{name}-0-0  Normal  <age>  \[Scheduled\] placed on dgx1-1: {'' if gpus == '1' else f'{gpus} of '}GPU \d",
        rf"pod/{name}-0-0  Normal  <age>  \[Started\] the job has started",
    )


EPOCH = (
    r"Epoch 1/\d+",
    r" *1/\d+ \[>\.+\] - ETA: \S+ - loss: \d+\.\d+ - accuracy: [01]\.\d+ - \d+[mu]?s/step",
    r" *(\d+)/\1 \[=+\] - \S+ \d+[mu]?s/step - loss: \d+\.\d+ - accuracy: [01]\.\d+ - val_accuracy: [01]\.\d+",
)

DOCUMENTED_COMMANDS = (
    # 2
    Step(
        "runai project set team-a runai submit hyper1 -i gcr.io/run-ai-demo/quickstart -g 1",
        "project team-a configured successfully\n" + submit_output("hyper1", "team-a"),
    ),
    # 3
    Step(
        "runai list",
        f"Showing jobs for project team-a\n{COLUMNS_2020}\n"
        f"hyper1  Running  <age>  dgx1-1  {QUICKSTART}  Train  team-a  {USER}  1  true\n",
        wait_for=job_runs("hyper1", "team-a"),
    ),
    # 4
    Step(
        "runai get hyper1",
        lines=describe_lines("hyper1", "team-a", "Train", "1"),
        wait_for=job_runs("hyper1", "team-a"),
    ),
    # 5
    Step("runai logs hyper1", lines=EPOCH, wait_for=has_trained("hyper1")),
    # 6
    Step("runai delete hyper1", "Job hyper1 deleted successfully.\n", ended_jobs=frozenset({"hyper1"})),
    Step("runai list", f"Showing jobs for project team-a\n{COLUMNS_2020}\n", wait_for=job_is_gone("hyper1", "team-a")),
    Step("runai submit hyper1 -i gcr.io/run-ai-demo/quickstart -g 1", submit_output("hyper1", "team-a")),
    Step(
        "runai delte hyper1",
        "Job hyper1 deleted successfully.\n",
        "warning: delte: taken as delete\n",
        wait_for=job_runs("hyper1", "team-a"),
        ended_jobs=frozenset({"hyper1"}),
    ),
    # 15; here, so that at least one job always runs
    Step("runai project set user-agm", "project user-agm configured successfully\n"),
    Step("runai submit frac03-3 -i gcr.io/run-ai-demo/quickstart -g 0.3", submit_output("frac03-3", "user-agm")),
    # 7
    Step("runai config project team-a", "project team-a configured successfully\n"),
    Step(
        "runai submit build1 -i python -g 1 --interactive --command sleep --args infinity",
        submit_output("build1", "team-a"),
    ),
    # 8
    Step(
        "runai get build1",
        lines=describe_lines("build1", "team-a", "Interactive", "1"),
        wait_for=job_runs("build1", "team-a"),
    ),
    Step("runai bash build1", "build1-0-0\n/workload\n", typed="hostname; pwd; exit 4\n", status=4),
    # 12
    Step(
        "runai list -A",
        f"{COLUMNS_2020}\n"
        f"build1  Running  <age>  dgx1-1  python  Interactive  team-a  {USER}  1  true\n"
        f"frac03-3  Running  <age>  dgx1-1  {QUICKSTART}  Train  user-agm  {USER}  0.3  true\n",
    ),
    Step("runai delete build1", "Job build1 deleted successfully.\n", ended_jobs=frozenset({"build1"})),
    # 16
    Step(
        "runai describe job frac03-3 -p user-agm",
        lines=describe_lines("frac03-3", "user-agm", "Train", r"0\.3"),
        wait_for=job_runs("frac03-3", "user-agm"),
    ),
    # 17
    Step("runai project set user-agm", "project user-agm configured successfully\n"),
    Step("runai bash frac03-3", "frac03-3-0-0\n/workload\n", typed="hostname; pwd\n"),
    # 18
    Step(
        "runai list jobs",
        f"Showing jobs for project user-agm\n{COLUMNS_2023}\n"
        f"frac03-3  Running  <age>  dgx1-1  {QUICKSTART}  Train  user-agm  {USER}  0.30 (0.30)  1 (0)\n",
    ),
    # 19
    Step("runai delete job frac03-3", "Job frac03-3 deleted successfully.\n", ended_jobs=frozenset({"frac03-3"})),
    Step(
        "runai list jobs",
        f"Showing jobs for project user-agm\n{COLUMNS_2023}\n",
        wait_for=job_is_gone("frac03-3", "user-agm"),
    ),
)


def run_step(platform: Platform, step: Step) -> CommandResult:
    step.wait_for(platform)
    done = platform.sh(step.command, step.typed)
    return CommandResult(done.status, normalize(done.out), done.err)
