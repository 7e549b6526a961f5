"""HTTP routes that ask the scheduler: the explanation of a job, and the whole cluster as a scenario file.

Both are answered from the scheduler's last decision, so they exist only in a process that runs a scheduler. Planning
and writing the scenario happen in worker threads.
"""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.api import KINDS, Workload
from aliquot.errors import Denied, Fault, Invalid, NotFound
from aliquot.scheduler.explain.service import Explainer
from aliquot.scheduler.last_decision import LastDecision
from aliquot.server.access_control import AccessControl
from aliquot.server.http_json import json_response
from aliquot.server.object_routes import PREFIX
from aliquot.sim.export import export_scenario
from aliquot.store.typed_store import Store

EXPLANATION = f"{PREFIX}/namespaces/{{namespace}}/workloads/{{name}}/explanation"
SCENARIO = f"{PREFIX}/scenario"
# The kinds that a scenario is made from: a caller must be allowed to see all objects of each.
_SCENARIO_KINDS = ("Node", "Pod", "Workload", "Project", "Department", "NodePool", "SchedulingPolicy")


class Explanations:
    def __init__(self, store: Store, access: AccessControl, last: LastDecision | None) -> None:
        self._store = store
        self._access = access
        self._explainer = Explainer(last) if last is not None else None

    def routes(self) -> list[Route]:
        return [
            Route(EXPLANATION, self.explanation, methods=["GET"]),
            Route(SCENARIO, self.scenario, methods=["GET"]),
        ]

    async def explanation(self, request: Request) -> Response:
        caller = await self._access.authenticate(request.headers.get("authorization"))
        kind, name, namespace = KINDS.of(Workload), request.path_params["name"], request.path_params["namespace"]
        self._access.require(caller, "view", kind, namespace, name)
        what_if = _flag(request, "whatIf")
        workload = await self._store.get(Workload, name, namespace)
        answer = await self._require_explainer().explain(
            workload, lambda other: self._access.may(caller, "view", kind, other), what_if=what_if
        )
        return json_response(answer)

    async def scenario(self, request: Request) -> Response:
        caller = await self._access.authenticate(request.headers.get("authorization"))
        if not all(self._access.sees_all(caller, KINDS.named(kind)) for kind in _SCENARIO_KINDS):
            raise Denied(
                f"{caller.subject!r} may not see the whole cluster", hint="ask an administrator to write it for you"
            )
        explainer = self._require_explainer()
        decision = await explainer.decision()
        # In a thread, because a large cluster takes a while to encode.
        return json_response(await explainer.run_in_thread(lambda: json.dumps(export_scenario(decision)).encode()))

    def _require_explainer(self) -> Explainer:
        if self._explainer is None:
            raise NotFound(  # not Unavailable: waiting does not help
                "no scheduler runs in this process",
                hint="start the platform without --api-only, or with `scheduler` among its --parts",
            )
        return self._explainer


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "1", "false", "0"):
        raise Invalid.because("request", [Fault(name, f"must be true or false, not {text!r}")])
    return text in ("true", "1")
