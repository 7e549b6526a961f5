"""Tokens and client certificates that change while a program runs: files that are rewritten, and helper programs.

A helper program (an *exec plugin* in a kubeconfig) is run when there is no credential yet, when the last one is about
to expire, and when the server refused it. It speaks `ExecCredential` of `client.authentication.k8s.io`, v1 or v1beta1.
Nothing of what it prints on its standard output is ever shown.
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
EXEC_SECONDS = 60.0  # a helper may ask an identity provider far away
EARLY_SECONDS = 10.0  # a credential is renewed this long before it expires, for clocks that differ


def fixed(token: str) -> Callable[[], Awaitable[str]]:
    """A token that never changes, in the form that an endpoint takes."""

    async def give() -> str:
        return token

    return give


class FileToken:
    """A token in a file, read again whenever the file is another one or has changed."""

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
            # While it is being replaced the last one will do.
            if not self._token:
                raise Unauthenticated(f"cannot read the token in {self._path}: {reason(exc)}") from exc
        return self._token

    def __repr__(self) -> str:
        return f"FileToken({self._path})"


@dataclass(frozen=True, slots=True)
class Plugin:
    """How a kubeconfig says to run a helper program."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    version: str
    # What the helper is told on `KUBERNETES_EXEC_INFO`.
    cluster: Json | None = field(default=None, repr=False)
    install_hint: str = ""


class PluginToken:
    """The token a helper program gives; a client certificate it gives goes into the TLS context instead."""

    def __init__(self, plugin: Plugin, trust: ssl.SSLContext | None, clock: Callable[[], float] = time.time) -> None:
        self._plugin = plugin
        self._trust = trust
        self._clock = clock
        self._token: str | None = None
        self._expires = float("inf")
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self) -> str:
        async with self._one_at_a_time:
            if self._token is None or self._clock() > self._expires - EARLY_SECONDS:
                self._take(await _run(self._plugin))
            assert self._token is not None
            return self._token

    def refused(self, token: str) -> None:
        if token == self._token:
            self._token = None

    def __repr__(self) -> str:
        return f"PluginToken({self._plugin.command})"

    def _take(self, status: Json) -> None:
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
    """The `status` of the credential that the helper prints."""
    said, complaint, code = await _output(plugin)
    if code != 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise Unauthenticated(f"{plugin.command} failed with exit status {code}: {last[0][:300]}")
    try:
        credential = json.loads(said)
        status = credential["status"]
        same = credential["apiVersion"] == plugin.version and credential["kind"] == "ExecCredential"
    except (ValueError, KeyError, TypeError):
        raise Unauthenticated(f"{plugin.command} printed no ExecCredential with a status") from None
    if not same or not isinstance(status, dict):
        raise Unauthenticated(f"{plugin.command} printed no ExecCredential of {plugin.version}")
    return status


async def _output(plugin: Plugin) -> tuple[bytes, bytes, int | None]:
    about: Json = {"interactive": False}
    if plugin.cluster is not None:
        about["cluster"] = plugin.cluster
    told = json.dumps({"apiVersion": plugin.version, "kind": "ExecCredential", "spec": about})
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": told}
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
            said, complaint = await process.communicate()
    except TimeoutError as exc:
        raise Unavailable(f"{plugin.command} gave no credential within {EXEC_SECONDS:.0f} s") from exc
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return said, complaint, process.returncode


def use_certificate(trust: ssl.SSLContext, certificate: str, key: str, source: str) -> None:
    """Has new connections show this certificate. The TLS library reads files only, so there is one for a moment."""
    with tempfile.TemporaryDirectory(prefix="aliquot-") as folder:  # 0700
        path = Path(folder, "client.pem")
        path.write_text(f"{certificate}\n{key}\n")
        use_certificate_files(trust, path, path, source)


def use_certificate_files(trust: ssl.SSLContext, certificate: Path, key: Path, source: str) -> None:
    try:
        # An empty password: for an encrypted key the library would stop and ask on the terminal.
        trust.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as exc:
        raise Invalid(f"{source}: the client certificate and key cannot be used: {reason(exc)}") from exc


def reason(exc: BaseException) -> str:
    """Why, without the path: the message around it names that."""
    return (exc.strerror if isinstance(exc, OSError) else None) or type(exc).__name__
