"""An HTTP server that gives scripted answers, for behaviour that a real API server shows only rarely."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

Answer = tuple[int, dict[str, Any]] | Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedServer:
    """Answers one request after the other from the script, and records the requests."""

    def __init__(self, *answers: Answer, headers: dict[str, str] | None = None) -> None:
        self._answers = list(answers)
        self._headers = headers
        self.requests: list[web.Request] = []
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._server = TestServer(application)

    async def __aenter__(self) -> Self:
        await self._server.start_server()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.requests.append(request)
        answer = self._answers.pop(0)
        if callable(answer):
            return await answer(request)
        status, data = answer
        return web.json_response(data, status=status, headers=self._headers)


def stream(*events: dict[str, Any] | bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A watch that sends these events and then ends normally."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
        return response

    return answer


def status_reply(status: int, message: str = "scripted", reason: str = "") -> Answer:
    return status, {"kind": "Status", "code": status, "message": message, "reason": reason}


def event(type_: str, version: str, name: str = "x") -> dict[str, Any]:
    return {"type": type_, "object": {"metadata": {"name": name, "resourceVersion": version}}}
