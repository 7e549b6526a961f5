"""Sections 4.8 to 4.10 of the customer's document: over-quota, fairness, over-quota fairness, on sixteen GPUs.

The commands are those of the document, in its order. Each step has the state that the cluster reaches after it.
"""

from __future__ import annotations

from dataclasses import dataclass

QUOTAS = {"team-a": 4.0, "team-b": 2.0, "team-c": 2.0, "team-d": 8.0}


@dataclass(frozen=True)
class Step:
    command: str
    allocated: tuple[float, float, float, float]  # GPUs of the four teams
    pending: str = ""  # names of the pending jobs
    deleted: str = ""  # names of the deleted jobs


def _submit(name: str, gpus: str, team: str) -> str:
    return f"runai submit {name} -i gcr.io/run-ai-demo/quickstart -g {gpus} -p {team}"


# 4.8: high utilisation with over-quota
OVER_QUOTA_STEPS = (
    Step(
        "runai submit a-1-1-jupyter -i jupyter/base-notebook -g 1 --interactive --service-type=ingress --port 8888"
        ' --args="--NotebookApp.base_url=team-a-test-ingress" --command=start-notebook.sh -p team-a',
        (1, 0, 0, 0),
    ),
    Step(_submit("a-1-g", "1", "team-a"), (2, 0, 0, 0)),
    Step(_submit("a-2-gg", "2", "team-a"), (4, 0, 0, 0)),
    Step(_submit("b-1-g06", "0.6 --interactive", "team-b"), (4, 0.6, 0, 0)),
    Step(_submit("b-2-g04", "0.4 --interactive", "team-b"), (4, 1, 0, 0)),
    Step(_submit("b-3-g", "1", "team-b"), (4, 2, 0, 0)),
    Step(_submit("b-4-gg", "2", "team-b"), (4, 4, 0, 0)),
    Step(_submit("c-1-g05", "0.5 --interactive", "team-c"), (4, 4, 0.5, 0)),
    Step(_submit("c-2-g03", "0.3 --interactive", "team-c"), (4, 4, 0.8, 0)),
    Step(_submit("c-3-g02", "0.2 --interactive", "team-c"), (4, 4, 1, 0)),
    Step(_submit("c-4-gg", "2", "team-c"), (4, 4, 3, 0)),
    Step(_submit("c-5-g", "1", "team-c"), (4, 4, 4, 0)),
    Step(_submit("d-1-gggg", "4", "team-d"), (4, 4, 4, 4)),
)
# 4.9: basic fairness
FAIRNESS_STEPS = (
    Step(_submit("d-2-gg", "2", "team-d"), (4, 4, 2, 6), pending="c-4-gg"),
    Step(_submit("d-3-gg", "2", "team-d"), (4, 2, 2, 8), pending="b-4-gg c-4-gg"),
)
# 4.10: over-quota fairness
OVER_QUOTA_FAIRNESS_STEPS = (
    Step(_submit("a-3-gg", "2", "team-a"), (4, 2, 2, 8), pending="b-4-gg c-4-gg a-3-gg"),
    Step(_submit("a-4-gg", "2", "team-a"), (4, 2, 2, 8), pending="b-4-gg c-4-gg a-3-gg a-4-gg"),
    Step(_submit("b-5-gg", "2", "team-b"), (4, 2, 2, 8), pending="b-4-gg c-4-gg a-3-gg a-4-gg b-5-gg"),
    Step(_submit("c-6-gg", "2", "team-c"), (4, 2, 2, 8), pending="b-4-gg c-4-gg a-3-gg a-4-gg b-5-gg c-6-gg"),
    Step(
        "runai delete -p team-d d-1-gggg d-2-gg d-3-gg",
        (8, 4, 4, 0),
        pending="b-5-gg c-6-gg",
        deleted="d-1-gggg d-2-gg d-3-gg",
    ),
)
EVICTED = {"b-4-gg": "team-d/d-3-gg", "c-4-gg": "team-d/d-2-gg"}  # evicted job -> the job it was evicted for
