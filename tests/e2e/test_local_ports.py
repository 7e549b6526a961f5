"""Ports of local pods: reachable through the platform, and only through the pod that listens."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from aliquot.api import Pod
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.errors import Conflict
from support.pods.agent_harness import AgentHarness, command_pod

# Listens on any free port of an address, says which, and sends back what it hears until the other side is done.
ECHO = """
import socket, socketserver, sys
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while data := self.connection.recv(65536):
            self.connection.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = Server((sys.argv[1], 0), Echo)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


async def echo(harness: AgentHarness, name: str, address: str = "127.0.0.1") -> tuple[Pod, int]:
    """A pod that listens, and its port."""
    seen = await harness.run(command_pod(name, sys.executable, "-c", ECHO, address))
    return seen, int(await harness.printed(seen, "\n"))


async def answer(runtime: ProcessRuntime, seen: Pod, port: int, data: bytes) -> bytes:
    """The whole answer to the data, after our side was closed."""
    pipe = await runtime.connect(seen, port)
    try:

        async def send() -> None:
            await pipe.write(data)
            await pipe.close_input()

        sending = asyncio.create_task(send())
        got = b"".join([piece async for piece in pipe.output()])
        await sending
        return got
    finally:
        await pipe.close()


def _addresses() -> list[str]:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:  # not every machine has IPv6
        return ["127.0.0.1", "0.0.0.0", "127.0.0.9"]
    return ["127.0.0.1", "0.0.0.0", "127.0.0.9", "::"]


@pytest.mark.parametrize("address", _addresses())
async def test_a_port(harness: AgentHarness, address: str) -> None:
    """Bytes go both ways, whatever address the pod listens on; closing the input does not end the answer."""
    async with harness.agent() as runtime:
        seen, port = await echo(harness, "p-0-0", address)
        data = bytes(range(256)) * 4000
        assert await answer(runtime, seen, port, data) == data


async def test_a_port_of_a_child_process(harness: AgentHarness) -> None:
    """A server that the pod's command started belongs to the pod."""
    async with harness.agent() as runtime:
        script = f'{sys.executable} -c "$ECHO" 127.0.0.1 & wait'
        seen = await harness.run(command_pod("p-0-0", "sh", "-c", script, env={"ECHO": ECHO}))
        port = int(await harness.printed(seen, "\n"))
        assert await answer(runtime, seen, port, b"hello") == b"hello"


async def test_a_port_of_another_pod(harness: AgentHarness) -> None:
    """The port of another pod is not reached through this one."""
    async with harness.agent() as runtime:
        own, _ = await echo(harness, "a-0-0")
        _, theirs = await echo(harness, "b-0-0")
        with pytest.raises(Conflict, match=f"nothing in pod a-0-0 listens on port {theirs}"):
            await runtime.connect(own, theirs)


async def test_a_port_of_the_machine(harness: AgentHarness) -> None:
    """A port of the machine itself is not reached through a pod."""
    async with harness.agent() as runtime:
        own, _ = await echo(harness, "a-0-0")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with pytest.raises(Conflict, match=f"nothing in pod a-0-0 listens on port {port}"):
                await runtime.connect(own, port)


async def test_a_finished_pod(harness: AgentHarness) -> None:
    async with harness.agent() as runtime:
        ended, _ = await harness.finish(command_pod("p-0-0", "true"))
        with pytest.raises(Conflict, match="does not run: it has ended"):
            await runtime.connect(ended, 80)
