"""Requests for explanations leave the event loop free: the planner runs in a worker thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

from starlette.requests import Request

from aliquot.planner import cycle_state
from aliquot.scheduler.last_decision import Decision, LastDecision
from aliquot.scheduler.loop import Scheduler
from aliquot.server.explain import Explanations
from aliquot.store.informer import Informers
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import running


class CountingDecisions(LastDecision):
    def __init__(self) -> None:
        super().__init__()
        self.plans = 0

    def record(self, decision: Decision) -> None:
        self.plans += 1
        super().record(decision)


class OpenAccess:
    """Lets every caller see everything."""

    async def authenticate(self, header: str | None) -> str:
        return "anybody"

    def require(self, *request: Any) -> None:
        return

    def may(self, *request: Any) -> bool:
        return True

    def sees_all(self, *request: Any) -> bool:
        return True


@contextmanager
def planner_calls() -> Iterator[list[str]]:
    """Functions of the planner's working state that run in this thread. Every plan and every trial goes through it."""
    calls: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == cycle_state.__file__:
            calls.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@asynccontextmanager
async def follower(world: World) -> AsyncIterator[tuple[Explanations, CountingDecisions]]:
    """The HTTP routes of a replica whose scheduler does not lead, and so plans only on request."""
    await world.node("n1", 1)
    await world.project("a", 1)
    await world.submit("large", 4000, pod=True)
    last, informers = CountingDecisions(), Informers(world.store.driver)
    Scheduler(world.store, informers, last=last)
    async with running(*(informer.run() for informer in informers)):
        await informers.wait()
        yield Explanations(world.store, OpenAccess(), last), last  # type: ignore[arg-type]


def get(path: str, query: bytes = b"", **path_params: str) -> Request:
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": query}
    return Request({**scope, "path_params": path_params})


async def test_explanation_plans_in_a_thread(embedded: StoreNamespace) -> None:
    """A replica that does not lead answers with a fresh plan, a queue position and trials, all made in a thread."""
    async with follower(World(embedded)) as (explanations, _):
        with planner_calls() as calls:
            request = get("/explanation", b"whatIf=true", namespace="runai-a", name="large")
            answer = bytes((await explanations.explanation(request)).body)
        assert b'"state":"waiting"' in answer.replace(b" ", b"")
        assert b"wouldRun" in answer
        assert calls == []


async def test_scenario_plans_in_a_thread(embedded: StoreNamespace) -> None:
    """The exported scenario of such a replica is also planned and written in a thread."""
    async with follower(World(embedded)) as (explanations, _):
        with planner_calls() as calls:
            answer = bytes((await explanations.scenario(get("/scenario"))).body)
        assert b"large" in answer
        assert calls == []


async def test_concurrent_requests_share_one_plan(embedded: StoreNamespace) -> None:
    """Requests that arrive together wait for one plan, and a request without new events needs none."""
    async with follower(World(embedded)) as (explanations, last):
        request = get("/explanation", namespace="runai-a", name="large")
        answers = await asyncio.gather(*(explanations.explanation(request) for _ in range(10)))
        assert len(answers) == 10
        await explanations.explanation(request)
        assert last.plans == 1


async def test_cancelled_request_does_not_end_the_plan(embedded: StoreNamespace) -> None:
    """When the client of the first request disconnects, the next request gets the plan that was begun for it."""
    async with follower(World(embedded)) as (_, last):
        cancelled = asyncio.create_task(last.latest())
        await asyncio.sleep(0)
        cancelled.cancel()
        decision = await last.latest()
        assert "runai-a/large" in decision.plan.refusals
        assert last.plans == 1
