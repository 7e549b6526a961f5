"""The administrator's token of a cluster, kept in a Secret of the platform's namespace.

All replicas share it, and a replica that starts with an empty disk does not issue another one.
"""

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
        self._secret: Document | None = None  # as last read

    async def read(self) -> str | None:
        """The token; None if there is no Secret, or nothing readable in it."""
        try:
            self._secret = await self._driver.get(SECRET, NAME, SYSTEM_NAMESPACE)
        except NotFound:
            self._secret = None
            return None
        try:
            return base64.b64decode(self._secret.data["data"][_KEY], validate=True).decode()
        except (KeyError, TypeError, ValueError, binascii.Error):
            return None

    async def write(self, text: str) -> bool:
        """Replaces the version that was read; False if another replica has written since."""
        metadata = {"name": NAME, "namespace": SYSTEM_NAMESPACE}
        data = {"type": "Opaque", "data": {_KEY: base64.b64encode(text.encode()).decode()}}
        try:
            if self._secret is None:
                await self._driver.create(SECRET, Document({**data, "metadata": metadata}))
            else:
                await self._driver.update(SECRET, Document({**self._secret.data, **data}))
        except (Conflict, Exists, NotFound):
            return False
        return True
