"""A replica that has lost its lease does not write."""

from __future__ import annotations

import pytest

from aliquot.errors import Unavailable
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http.transport import Endpoint
from aliquot.store.lease_fence import MAY_WRITE
from support.kubernetes.scripted_server import ScriptedServer
from support.stores.namespace import TEMPLATE, document

ONE = {"metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}}


async def test_nothing_is_sent() -> None:
    """A write is refused before it is sent; reads still work."""
    async with ScriptedServer((200, ONE)) as server, KubernetesDriver(Endpoint(server.url)) as driver:
        before = MAY_WRITE.set(lambda: False)
        try:
            with pytest.raises(Unavailable) as refused:
                await driver.create(TEMPLATE, document(TEMPLATE, "a", "n", {}))
            assert (await driver.get(TEMPLATE, "a", "n")).name == "a"
        finally:
            MAY_WRITE.reset(before)
    assert (refused.value.sent, refused.value.retry) == (False, False)
    assert [request.method for request in server.requests] == ["GET"]
