"""How a program on this machine finds its server, and how the server leaves word of itself.

Looked at in this order; the first place that names a server wins:

    arguments      --url, --token-file (and --data-dir, which skips to the last place)
    environment    ALIQUOT_URL, with ALIQUOT_TOKEN or ALIQUOT_TOKEN_FILE
    settings       config.json of the user (see settings.py)
    data folder    server.json, written by `aliquot up`, beside admin.token

A token is never an argument, so that it stands in no process list, and never printed: `Connection` hides it.
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
    """Where the server is and how to prove who we are."""

    url: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the user said on the command line about the server."""

    url: str = ""
    token_file: str = ""
    data_dir: str = ""


def data_folder(asked: str = "", env: Mapping[str, str] = os.environ) -> Path:
    """Where the embedded server keeps its data."""
    named = asked or env.get("ALIQUOT_DATA_DIR", "")
    if named:
        return Path(named).expanduser()
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "aliquot"


def find_server(asked: ServerOptions, settings: Settings, env: Mapping[str, str] = os.environ) -> Connection:
    """The server to talk to; `Unavailable` says how to start one."""
    url = asked.url or ("" if asked.data_dir else env.get("ALIQUOT_URL") or settings.url)
    folder = data_folder(asked.data_dir, env)
    if url:
        return Connection(_checked(url), _token(asked, settings, env) or _token_of_same_server(url, folder))
    server = running_server(folder)
    if server is None or not server.alive:
        raise Unavailable(f"no server is running for {folder}", hint=START_HINT)
    named = "" if asked.data_dir else _token(asked, settings, env)
    return Connection(server.url, named or _read_token(folder / TOKEN_FILE))


def _token(asked: ServerOptions, settings: Settings, env: Mapping[str, str]) -> str:
    if asked.token_file:
        return _read_token(Path(asked.token_file))
    if env.get("ALIQUOT_TOKEN"):
        return env["ALIQUOT_TOKEN"]
    if env.get("ALIQUOT_TOKEN_FILE"):
        return _read_token(Path(env["ALIQUOT_TOKEN_FILE"]))
    return settings.token


def _token_of_same_server(url: str, folder: Path) -> str:
    """The administrator's token when the named server is the one of this machine: it must go to no other."""
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
