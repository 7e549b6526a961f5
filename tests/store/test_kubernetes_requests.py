"""Failed requests: which are retried, which are left to the caller, and which secrets stay hidden."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from aliquot.errors import Expired, Invalid, Unauthenticated, Unavailable
from aliquot.store.driver import Change
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.drivers.rest import RestDriver
from aliquot.store.http.transport import Endpoint, Timeouts
from support.kubernetes.cluster import Cluster
from support.kubernetes.kinds import GADGET, gadget
from support.kubernetes.scripted_server import ScriptedServer, event, status_reply, stream
from support.kubernetes.tcp_proxy import TcpProxy, driver_through

OBJECT = (200, {"metadata": {"name": "g", "namespace": "n", "resourceVersion": "1"}})
BRIEF = Timeouts(deadline=0.3)


@pytest.mark.kube
async def test_write_waits_for_a_refusing_server(
    kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str
) -> None:
    """A write that could not be sent is retried until the server accepts connections."""
    async with TcpProxy(cluster_with_gadgets.port) as proxy, driver_through(proxy, cluster_with_gadgets) as driver:
        await proxy.refuse()
        write = asyncio.create_task(driver.create(GADGET, gadget(namespace)))
        await asyncio.sleep(0.2)
        await proxy.accept()

        assert (await write).name == "g"


@pytest.mark.kube
async def test_refused_connection_left_nothing(cluster_with_gadgets: Cluster, namespace: str) -> None:
    """After the deadline the error says that the request was not sent."""
    async with (
        TcpProxy(cluster_with_gadgets.port) as proxy,
        driver_through(proxy, cluster_with_gadgets, BRIEF) as driver,
    ):
        await proxy.refuse()

        with pytest.raises(Unavailable) as caught:
            await driver.create(GADGET, gadget(namespace))
    assert not caught.value.sent


@pytest.mark.kube
async def test_lost_answer_is_not_repeated(
    kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str
) -> None:
    """A write whose response is lost is sent once, and the error says that it may have taken effect."""
    created = await kube.create(GADGET, gadget(namespace))
    async with TcpProxy(cluster_with_gadgets.port) as proxy, driver_through(proxy, cluster_with_gadgets) as driver:
        await driver.get(GADGET, "g", namespace)
        proxy.drop_responses()

        with pytest.raises(Unavailable) as caught:
            await driver.delete(GADGET, "g", namespace, uid=created.uid)
        assert proxy.connections == 1
    assert caught.value.sent
    for _ in range(100):  # the server may still be at it
        if not (await kube.list(GADGET, namespace)).items:
            break
        await asyncio.sleep(0.05)
    assert (await kube.list(GADGET, namespace)).items == []


@pytest.mark.kube
async def test_read_comes_through_a_cut(kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str) -> None:
    """A read on a broken connection is retried."""
    await kube.create(GADGET, gadget(namespace))
    async with TcpProxy(cluster_with_gadgets.port) as proxy, driver_through(proxy, cluster_with_gadgets) as driver:
        await driver.get(GADGET, "g", namespace)
        proxy.cut()

        assert (await driver.get(GADGET, "g", namespace)).name == "g"


@pytest.mark.kube
async def test_wrong_certificate_is_not_tried_again(cluster: Cluster) -> None:
    """A certificate error is not retried."""
    async with KubernetesDriver(Endpoint(cluster.server)) as driver:
        with pytest.raises(Unavailable, match="certificate") as caught:
            await driver.get(GADGET, "g", "n")
    assert not caught.value.retry


@pytest.mark.parametrize("status", [500, 503, 504])
async def test_read_is_tried_again(status: int) -> None:
    """A read is retried after 429 and after server errors."""
    async with (
        ScriptedServer(status_reply(status), status_reply(429), OBJECT) as server,
        RestDriver(Endpoint(server.url)) as driver,
    ):
        assert (await driver.get(GADGET, "g", "n")).version == "1"
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [500, 503, 504])
async def test_write_is_not_tried_again(status: int) -> None:
    """A write that may have taken effect is not retried."""
    async with ScriptedServer(status_reply(status, "oh"), OBJECT) as server, RestDriver(Endpoint(server.url)) as driver:
        with pytest.raises(Unavailable, match="oh"):
            await driver.create(GADGET, gadget("n"))
    assert len(server.requests) == 1


async def test_write_turned_away_is_tried_again() -> None:
    """A write that the server rejected unread is retried."""
    async with ScriptedServer(status_reply(429), OBJECT) as server, RestDriver(Endpoint(server.url)) as driver:
        assert (await driver.create(GADGET, gadget("n"))).version == "1"


async def test_deadline_ends_it() -> None:
    """A retry time beyond the deadline is reported at once."""
    busy = ScriptedServer(status_reply(429), headers={"Retry-After": "60"})
    async with busy as server, RestDriver(Endpoint(server.url), timeouts=BRIEF) as driver:
        with pytest.raises(Unavailable):
            await driver.get(GADGET, "g", "n")


async def test_slow_answer_times_out() -> None:
    """Every request has a timeout."""

    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    quick = Timeouts(deadline=0.1, answer=0.2)
    async with ScriptedServer(never) as server, RestDriver(Endpoint(server.url), timeouts=quick) as driver:
        with pytest.raises(Unavailable, match="no answer in time"):
            await driver.create(GADGET, gadget("n"))


@pytest.mark.parametrize("payload", [b"<html>log in</html>", b"[]", b'{"hello": "world"}'])
async def test_other_servers_are_noticed(payload: bytes) -> None:
    """A response that is not from an API server is an error with a hint."""

    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(body=payload)

    async with ScriptedServer(page) as server, RestDriver(Endpoint(server.url), timeouts=BRIEF) as driver:
        with pytest.raises(Unavailable, match="address of an API server"):
            await driver.get(GADGET, "g", "n")


async def test_redirect_is_not_followed() -> None:
    """A redirect is not followed, so that the token reaches no other server."""

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/login")

    async with ScriptedServer(elsewhere) as server, RestDriver(Endpoint(server.url)) as driver:
        with pytest.raises(Invalid):
            await driver.get(GADGET, "g", "n")
    assert len(server.requests) == 1


class _Tokens:
    """A list of tokens; after a refusal the next one is used."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = list(tokens)

    async def __call__(self) -> str:
        return self._tokens[0]

    def refused(self, token: str) -> None:
        if len(self._tokens) > 1:
            self._tokens.remove(token)


async def test_refused_token_is_renewed_once() -> None:
    """A write with an expired token is retried with a fresh one."""
    tokens = _Tokens("old", "new")
    async with (
        ScriptedServer(status_reply(401), OBJECT) as server,
        RestDriver(Endpoint(server.url, token=tokens, refused=tokens.refused)) as driver,
    ):
        await driver.create(GADGET, gadget("n"))
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]


async def test_wrong_token_is_an_error() -> None:
    """A token that stays invalid is refused, and appears in no message."""
    tokens = _Tokens("sekret-token")
    async with ScriptedServer(status_reply(401, "who are you")) as server:
        endpoint = Endpoint(server.url, tokens, tokens.refused)
        async with RestDriver(endpoint) as driver:
            with pytest.raises(Unauthenticated, match="who are you") as caught:
                await driver.get(GADGET, "g", "n")
            assert "sekret" not in repr(driver) + repr(endpoint) + repr(caught.value) + str(caught.value)


async def test_token_with_a_line_break_is_refused() -> None:
    """A token with line breaks is not sent and not shown."""
    tokens = _Tokens("sekret\r\nX-Evil: yes")
    async with ScriptedServer() as server, RestDriver(Endpoint(server.url, tokens)) as driver:
        with pytest.raises(Unauthenticated) as caught:
            await driver.get(GADGET, "g", "n")
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host", "host:80", "https://", "https://me:sekret@host", "https://host?a=b"])
def test_bad_address_is_invalid(url: str) -> None:
    """An invalid address is refused, and a password in it is not shown."""
    with pytest.raises(Invalid) as caught:
        Endpoint(url)
    assert "sekret" not in str(caught.value)


async def test_closed_body_says_so() -> None:
    """After closing, every call fails with the reason."""
    driver = RestDriver(Endpoint("http://127.0.0.1:1"), timeouts=BRIEF)
    await driver.close()

    with pytest.raises(Unavailable, match="closed"):
        await driver.check()


async def test_objects_that_are_no_json_are_invalid() -> None:
    """A document that is not JSON is invalid input, before anything is sent."""
    async with RestDriver(Endpoint("http://127.0.0.1:1")) as driver:
        with pytest.raises(Invalid, match="JSON"):
            await driver.create(GADGET, gadget("n", size={1, 2}))


async def test_ended_stream_goes_on_from_the_last_version() -> None:
    """When the server ends a stream, the watch resumes from the last version, also that of a bookmark."""
    first = stream(event("ADDED", "5"), event("BOOKMARK", "8"))
    async with (
        ScriptedServer(first, stream(event("MODIFIED", "9"))) as server,
        RestDriver(Endpoint(server.url)) as driver,
    ):
        seen: list[Change] = []
        async for change in driver.watch(GADGET, version="3"):
            seen.append(change)
            if len(seen) == 3:
                break

    assert [change.version for change in seen] == ["5", "8", "9"]
    assert seen[1].document is None
    assert [request.query["resourceVersion"] for request in server.requests] == ["3", "8"]
    assert all(request.query["allowWatchBookmarks"] == "true" for request in server.requests)
    assert all(300 <= int(request.query["timeoutSeconds"]) <= 600 for request in server.requests)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"type": "ERROR", "object": {"code": 410, "message": "too old"}}, Expired),
        ({"type": "ERROR", "object": {"code": 500, "message": "oh"}}, Unavailable),
        ({"type": "ERROR"}, Unavailable),
        ({"type": "SURPRISE", "object": {}}, Unavailable),
        ({"type": "ADDED"}, Unavailable),
        (b"not json\n", Unavailable),
    ],
)
async def test_bad_event_ends_the_watch(line: dict[str, object] | bytes, expected: type[Exception]) -> None:
    """An error or an invalid line inside the stream is raised, not skipped."""
    async with ScriptedServer(stream(line)) as server, RestDriver(Endpoint(server.url)) as driver:
        with pytest.raises(expected):
            await anext(driver.watch(GADGET, version="3"))


async def test_our_own_paths() -> None:
    """Our own server has every kind in one group."""
    async with (
        ScriptedServer(OBJECT, (200, {"metadata": {}, "items": []})) as server,
        RestDriver(Endpoint(server.url)) as driver,
    ):
        await driver.get(GADGET, "g", "n")
        await driver.list(GADGET)

    assert [request.path for request in server.requests] == [
        "/apis/aliquot.dev/v1/namespaces/n/gadgets/g",
        "/apis/aliquot.dev/v1/gadgets",
    ]
