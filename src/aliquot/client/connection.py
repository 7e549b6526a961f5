"""How a program finds its server and token.

These sources are read in order; the first one that names a server wins:

    arguments      --url, --token-file (with --data-dir only the data folder is read)
    environment    ALIQUOT_URL, with ALIQUOT_TOKEN or ALIQUOT_TOKEN_FILE
    settings       the user's config.json (see settings.py)
    data folder    server.json, written by `aliquot up`, beside admin.token

A token is never an argument, so that it is in no process list. `Connection` never prints it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aliquot.client.settings import Settings
from aliquot.errors import Invalid, Unauthenticated, Unavailable
from aliquot.folder import TOKEN_FILE, running_server

TOKEN_HINT = "give a token in ALIQUOT_TOKEN or a readable file with --token-file"  # noqa: S105  # a sentence
START_HINT = "start one with `aliquot up`, or name one with --url or ALIQUOT_URL"


@dataclass(frozen=True, slots=True)
class Connection:
    """The address of a server and the token for it."""

    url: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The command-line options that choose a server."""

    url: str = ""
    token_file: str = ""
    data_dir: str = ""


def data_folder(data_dir: str = "", env: Mapping[str, str] = os.environ) -> Path:
    """The data folder of the embedded server."""
    chosen = data_dir or env.get("ALIQUOT_DATA_DIR", "")
    if chosen:
        return Path(chosen).expanduser()
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "aliquot"


def find_server(options: ServerOptions, settings: Settings, env: Mapping[str, str] = os.environ) -> Connection:
    """The server to call; `Unavailable` when none is running, with a hint how to start one."""
    url = options.url or ("" if options.data_dir else env.get("ALIQUOT_URL") or settings.url)
    folder = data_folder(options.data_dir, env)
    if url:
        return Connection(_checked(url), _token(options, settings, env) or _token_of_same_server(url, folder))
    server = running_server(folder)
    if server is None or not server.alive:
        raise Unavailable(f"no server is running for {folder}", hint=START_HINT)
    token = "" if options.data_dir else _token(options, settings, env)
    return Connection(server.url, token or _read_token(folder / TOKEN_FILE))


def _token(options: ServerOptions, settings: Settings, env: Mapping[str, str]) -> str:
    if options.token_file:
        return _read_token(Path(options.token_file))
    if env.get("ALIQUOT_TOKEN"):
        return env["ALIQUOT_TOKEN"]
    if env.get("ALIQUOT_TOKEN_FILE"):
        return _read_token(Path(env["ALIQUOT_TOKEN_FILE"]))
    return settings.token


def _token_of_same_server(url: str, folder: Path) -> str:
    """The administrator's token if the URL is that of the local server; empty otherwise. No other server may get it."""
    server = running_server(folder)
    if server and server.alive and server.url.rstrip("/") == url.rstrip("/"):
        return _read_token(folder / TOKEN_FILE)
    return ""


def _read_token(path: Path) -> str:
    try:
        token = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not text"
        raise Unauthenticated(
            f"cannot read the token in {path}: {reason}",
            hint=TOKEN_HINT,
        ) from exc
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Unauthenticated(f"{path} holds no token", hint="it must hold one line of printable characters")
    return token


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise Invalid(f"{url!r} is no server address", hint="write it as http://127.0.0.1:7520")
    return url.rstrip("/")
