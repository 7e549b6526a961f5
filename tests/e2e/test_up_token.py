"""The administrator's token: created once, kept secret, and replaced when it is lost."""

from __future__ import annotations

import json
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.stores.process import ServerProcess


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data", "--log-level", "debug").start()
    yield server
    server.stop()


def get(server: ServerProcess, path: str, token: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def whoami(server: ServerProcess, token: str) -> int:
    return get(server, "/apis/aliquot.dev/v1/whoami", token)[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_file_mode(running: ServerProcess) -> None:
    """The token file is 0600 in a folder that is 0700."""
    assert mode(running.folder / "admin.token") == 0o600
    assert mode(running.folder) == 0o700


def test_works(running: ServerProcess) -> None:
    """The token in the file is the administrator's."""
    status, answer = get(running, "/apis/aliquot.dev/v1/whoami", running.token)
    assert status == 200
    assert answer["subject"] == "admin"


def test_wrong_token(running: ServerProcess) -> None:
    """Another token is refused."""
    name, _, secret = running.token.rpartition("_")
    assert whoami(running, f"{name}_{secret[::-1]}") == 401


def test_secret_stays_secret(running: ServerProcess) -> None:
    """The secret is not in the log, the arguments, the environment, server.json or the database."""
    secret = running.token.rpartition("_")[2]
    whoami(running, running.token)
    whoami(running, running.token + "x")
    process = Path(f"/proc/{running.pid}")
    contents = {
        "log": running.log.encode(),
        "arguments": (process / "cmdline").read_bytes(),
        "environment": (process / "environ").read_bytes(),
        **{
            path.name: path.read_bytes()
            for path in running.folder.rglob("*")
            if path.is_file() and path.name != "admin.token"
        },
    }
    assert len(secret) >= 40
    assert [name for name, content in contents.items() if secret.encode() in content] == []


def test_restart_keeps_it(running: ServerProcess) -> None:
    """A restart creates no new token, neither after a clean stop nor after a kill."""
    token = running.token
    running.stop()
    running.start()
    assert running.token == token
    running.kill()
    running.start()
    assert running.token == token
    assert whoami(running, token) == 200


def test_lost_file(running: ServerProcess) -> None:
    """A deleted token file is created again with a new token; the old token still works and is listed."""
    old = running.token
    running.stop()
    (running.folder / "admin.token").unlink()
    running.start()
    assert running.token != old
    assert mode(running.folder / "admin.token") == 0o600
    assert [whoami(running, token) for token in (running.token, old)] == [200, 200]
    _, answer = get(running, "/apis/aliquot.dev/v1/tokens", running.token)
    names = {item["metadata"]["name"] for item in answer["items"]}
    assert names == {token.split("_")[1] for token in (old, running.token)}


@pytest.mark.parametrize("content", ["", "nonsense\n", "alq_admin-00000000_wrong\n"])
def test_invalid_file(running: ServerProcess, content: str) -> None:
    """A token file without a valid token is replaced."""
    running.stop()
    (running.folder / "admin.token").write_text(content)
    running.start()
    assert whoami(running, running.token) == 200
