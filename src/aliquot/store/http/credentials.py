"""Credentials that change while a program runs: token files, and exec plugins of kubeconfigs.

An exec plugin is run when there is no credential yet, when the last one is about to expire, and when the server refused
it. It prints an `ExecCredential` of `client.authentication.k8s.io`, v1 or v1beta1. Its standard output is never shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aliquot import units
from aliquot.api import Json
from aliquot.errors import Invalid, Unauthenticated, Unavailable

EXEC_GROUP = "client.authentication.k8s.io"
EXEC_VERSIONS = (f"{EXEC_GROUP}/v1", f"{EXEC_GROUP}/v1beta1")
EXEC_SECONDS = 60.0  # a plugin may ask a remote identity provider
EARLY_SECONDS = 10.0  # a credential is renewed this long before it expires, because clocks differ


def fixed(token: str) -> Callable[[], Awaitable[str]]:
    """A constant token in the form that `Endpoint.token` expects."""

    async def constant() -> str:
        return token

    return constant


class FileToken:
    """A token in a file, read again whenever the file changes or is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    async def __call__(self) -> str:
        try:
            state = self._path.stat()
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen != self._seen:
                self._token, self._seen = self._path.read_text().strip(), seen
        except (OSError, UnicodeDecodeError) as exc:
            # The file is being replaced: use the last token.
            if not self._token:
                raise Unauthenticated(f"cannot read the token in {self._path}: {reason(exc)}") from exc
        return self._token

    def __repr__(self) -> str:
        return f"FileToken({self._path})"


@dataclass(frozen=True, slots=True)
class Plugin:
    """An exec plugin as a kubeconfig defines it."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    version: str
    # Passed to the plugin in `KUBERNETES_EXEC_INFO`.
    cluster: Json | None = field(default=None, repr=False)
    install_hint: str = ""


class PluginToken:
    """The token of an exec plugin. A client certificate from the plugin goes into the TLS context instead."""

    def __init__(self, plugin: Plugin, trust: ssl.SSLContext | None, clock: Callable[[], float] = time.time) -> None:
        self._plugin = plugin
        self._trust = trust
        self._clock = clock
        self._token: str | None = None
        self._expires = float("inf")
        self._lock = asyncio.Lock()

    async def __call__(self) -> str:
        async with self._lock:
            if self._token is None or self._clock() > self._expires - EARLY_SECONDS:
                self._accept(await _run(self._plugin))
            assert self._token is not None
            return self._token

    def refused(self, token: str) -> None:
        if token == self._token:
            self._token = None

    def __repr__(self) -> str:
        return f"PluginToken({self._plugin.command})"

    def _accept(self, status: Json) -> None:
        name = self._plugin.command
        token, certificate, key = (status.get(key) or "" for key in ("token", "clientCertificateData", "clientKeyData"))
        if not isinstance(token, str) or not (token or (certificate and key)):
            raise Unauthenticated(f"{name} gave neither a token nor a client certificate with its key")
        if certificate and key:
            if self._trust is None:
                raise Invalid(f"{name} gave a client certificate, but the server's address is not https")
            use_certificate(self._trust, certificate, key, name)
        expires = status.get("expirationTimestamp")
        try:
            self._expires = units.timestamp(expires) if expires else float("inf")
        except ValueError as exc:
            raise Unauthenticated(f"{name} gave an expirationTimestamp that cannot be read") from exc
        self._token = token


async def _run(plugin: Plugin) -> Json:
    """The `status` of the credential that the plugin prints."""
    stdout, stderr, code = await _output(plugin)
    if code != 0:
        last = stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message on stderr"]
        raise Unauthenticated(f"{plugin.command} failed with exit status {code}: {last[0][:300]}")
    try:
        credential = json.loads(stdout)
        status = credential["status"]
        matches = credential["apiVersion"] == plugin.version and credential["kind"] == "ExecCredential"
    except (ValueError, KeyError, TypeError):
        raise Unauthenticated(f"{plugin.command} printed no ExecCredential with a status") from None
    if not matches or not isinstance(status, dict):
        raise Unauthenticated(f"{plugin.command} printed no ExecCredential of {plugin.version}")
    return status


async def _output(plugin: Plugin) -> tuple[bytes, bytes, int | None]:
    spec: Json = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = json.dumps({"apiVersion": plugin.version, "kind": "ExecCredential", "spec": spec})
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": info}
    if shutil.which(plugin.command, path=environment.get("PATH")) is None:
        raise Unauthenticated(f"no program {plugin.command} to log in with", hint=" ".join(plugin.install_hint.split()))
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    except OSError as exc:
        raise Unauthenticated(f"cannot run {plugin.command}: {reason(exc)}") from exc
    try:
        async with asyncio.timeout(EXEC_SECONDS):
            stdout, stderr = await process.communicate()
    except TimeoutError as exc:
        raise Unavailable(f"{plugin.command} gave no credential within {EXEC_SECONDS:.0f} s") from exc
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return stdout, stderr, process.returncode


def use_certificate(trust: ssl.SSLContext, certificate: str, key: str, source: str) -> None:
    """New connections present this certificate. The TLS library reads files only, so a temporary one is written."""
    with tempfile.TemporaryDirectory(prefix="aliquot-") as folder:  # 0700
        path = Path(folder, "client.pem")
        path.write_text(f"{certificate}\n{key}\n")
        use_certificate_files(trust, path, path, source)


def use_certificate_files(trust: ssl.SSLContext, certificate: Path, key: Path, source: str) -> None:
    try:
        # With no password the library would prompt on the terminal for an encrypted key.
        trust.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as exc:
        raise Invalid(f"{source}: the client certificate and key cannot be used: {reason(exc)}") from exc


def reason(exc: BaseException) -> str:
    """The cause without the path, which the surrounding message contains."""
    return (exc.strerror if isinstance(exc, OSError) else None) or type(exc).__name__
