"""The administrator's token of a cluster, in a Secret of our namespace: every replica has the same one, and a start on
an empty disk does not issue another."""

from __future__ import annotations

import base64
import binascii

from aliquot.backends.kubernetes.unstructured_kinds import SECRET
from aliquot.errors import Conflict, Exists, NotFound
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.driver import Document, StoreDriver

NAME = "aliquot-admin"
_KEY = "token"


class AdminToken:
    def __init__(self, driver: StoreDriver) -> None:
        self._driver = driver
        self._seen: Document | None = None

    async def read(self) -> str | None:
        try:
            self._seen = await self._driver.get(SECRET, NAME, SYSTEM_NAMESPACE)
        except NotFound:
            self._seen = None
            return None
        try:
            return base64.b64decode(self._seen.data["data"][_KEY], validate=True).decode()
        except (KeyError, TypeError, ValueError, binascii.Error):
            return None

    async def write(self, text: str) -> bool:
        """In place of what was read; False: somebody else wrote meanwhile."""
        metadata = {"name": NAME, "namespace": SYSTEM_NAMESPACE}
        data = {"type": "Opaque", "data": {_KEY: base64.b64encode(text.encode()).decode()}}
        try:
            if self._seen is None:
                await self._driver.create(SECRET, Document({**data, "metadata": metadata}))
            else:
                await self._driver.update(SECRET, Document({**self._seen.data, **data}))
        except (Conflict, Exists, NotFound):
            return False
        return True
