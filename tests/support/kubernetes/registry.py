"""A container registry with the part of the protocol that a node needs to pull images.

Nodes pull every image from here, whichever registry its name contains: `ubuntu` is at /v2/library/ubuntu and
`gcr.io/run-ai-demo/quickstart` at /v2/run-ai-demo/quickstart.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"


class Registry:
    """Serves the added images from a thread until it is closed."""

    def __init__(self, address: str) -> None:
        self.blobs: dict[str, bytes] = {}  # by digest
        self.names: dict[tuple[str, str], str] = {}  # (repository, tag) -> digest of the manifest
        self._server = ThreadingHTTPServer((address, 0), _Handler)
        self._server.registry = self  # type: ignore[attr-defined]  # read by the handler
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://{address}:{self._server.server_port}"

    def add(self, tar: Path) -> None:
        """Adds an image that images.py wrote."""
        with tarfile.open(tar) as archive:
            [saved] = json.loads(_member(archive, "manifest.json"))
            config = self._store(_member(archive, saved["Config"]))
            layers = [self._store(_member(archive, name)) for name in saved["Layers"]]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._entry(CONFIG, config),
            "layers": [self._entry(LAYER, layer) for layer in layers],
        }
        digest = self._store(json.dumps(manifest).encode())
        for name in saved["RepoTags"]:
            repository, _, tag = name.rpartition(":")
            self.names[_path(repository), tag] = digest

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _store(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def _entry(self, kind: str, digest: str) -> dict[str, Any]:
        return {"mediaType": kind, "digest": digest, "size": len(self.blobs[digest])}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        registry: Registry = self.server.registry  # type: ignore[attr-defined]
        path = self.path.partition("?")[0].removeprefix("/v2/")
        if "/manifests/" in path:
            repository, _, reference = path.partition("/manifests/")
            digest = registry.names.get((repository, reference), reference)
            self._answer(MANIFEST, digest, registry.blobs.get(digest))
        else:
            digest = path.rpartition("/")[2]
            self._answer("application/octet-stream", digest, b"{}" if not path else registry.blobs.get(digest))

    do_HEAD = do_GET

    def _answer(self, kind: str, digest: str, data: bytes | None) -> None:
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data or b"")))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET" and data is not None:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def _path(name: str) -> str:
    """The path of an image in a registry: without the registry's own name."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first):
        return rest
    return name if rest else f"library/{name}"
