"""How a program finds its server, and which server gets which token."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from aliquot.client.connection import Connection, ServerOptions, data_folder, find_server
from aliquot.client.settings import Settings, load_settings, save_settings, settings_file
from aliquot.errors import Invalid, PlatformError, Unauthenticated, Unavailable
from aliquot.folder import running_server, start_time

NONE = Settings()


def serving(folder: Path, **changes: object) -> Path:
    """A data folder as `aliquot up` leaves it, with this process as the server."""
    folder.mkdir(exist_ok=True)
    contents = {"url": "http://127.0.0.1:7520", "pid": os.getpid(), "startTime": start_time(os.getpid()), **changes}
    (folder / "server.json").write_text(json.dumps(contents))
    (folder / "admin.token").write_text("alq_admin_secret\n")
    return folder


def test_arguments_win(tmp_path: Path) -> None:
    """The order of precedence is options, environment, settings, data folder."""
    (tmp_path / "t").write_text("typed")
    serving(tmp_path / "data")
    env = {"ALIQUOT_URL": "http://env:1", "ALIQUOT_TOKEN": "env", "ALIQUOT_DATA_DIR": str(tmp_path / "data")}
    settings = Settings(url="http://set:1", token="set")
    typed = ServerOptions(url="http://typed:1/", token_file=str(tmp_path / "t"))
    assert find_server(typed, settings, env) == Connection("http://typed:1", "typed")
    assert find_server(ServerOptions(), settings, env) == Connection("http://env:1", "env")
    del env["ALIQUOT_URL"], env["ALIQUOT_TOKEN"]
    assert find_server(ServerOptions(), settings, env) == Connection("http://set:1", "set")
    assert find_server(ServerOptions(), NONE, env) == Connection("http://127.0.0.1:7520", "alq_admin_secret")


def test_data_dir_option_comes_before_the_environment(tmp_path: Path) -> None:
    """--data-dir selects the server of that folder, with its own token."""
    folder = serving(tmp_path / "data")
    env = {"ALIQUOT_URL": "http://env:1", "ALIQUOT_TOKEN": "env"}
    connection = find_server(ServerOptions(data_dir=str(folder)), Settings(url="http://set:1"), env)
    assert connection == Connection("http://127.0.0.1:7520", "alq_admin_secret")


def test_token_from_a_file_in_the_environment(tmp_path: Path) -> None:
    """ALIQUOT_TOKEN_FILE keeps the token out of the environment."""
    (tmp_path / "t").write_text("filed\n")
    env = {"ALIQUOT_URL": "http://env:1", "ALIQUOT_TOKEN_FILE": str(tmp_path / "t")}
    assert find_server(ServerOptions(), NONE, env).token == "filed"


def test_no_server_says_how_to_start_one(tmp_path: Path) -> None:
    """The error is one line with a hint."""
    with pytest.raises(Unavailable, match="no server is running") as caught:
        find_server(ServerOptions(data_dir=str(tmp_path)), NONE, {})
    assert "aliquot up" in caught.value.hint


@pytest.mark.parametrize("changes", [{"startTime": "1"}, {"pid": 2**22 + 1}])
def test_stale_server_file(tmp_path: Path, changes: dict[str, object]) -> None:
    """A process that has ended, or another one with the same pid, is not the server."""
    folder = serving(tmp_path / "data", **changes)
    with pytest.raises(Unavailable):
        find_server(ServerOptions(data_dir=str(folder)), NONE, {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 1}', '{"url": "x", "pid": "many"}'])
def test_invalid_server_file(tmp_path: Path, text: str) -> None:
    """An invalid server.json counts as missing."""
    (tmp_path / "server.json").write_text(text)
    assert running_server(tmp_path) is None


def test_administrators_token_is_only_for_the_local_server(tmp_path: Path) -> None:
    """A server named by URL gets the local token only if it is the local server."""
    env = {"ALIQUOT_DATA_DIR": str(serving(tmp_path / "data"))}
    assert find_server(ServerOptions(url="http://127.0.0.1:7520"), NONE, env).token == "alq_admin_secret"
    assert find_server(ServerOptions(url="http://evil:7520"), NONE, env).token == ""


def test_a_token_is_not_printed() -> None:
    """A token is not in the repr of a connection or of settings."""
    assert "secret" not in repr(Connection("http://x:1", "secret"))
    assert "secret" not in repr(Settings(token="secret"))


@pytest.mark.parametrize("content", [b"two words", b"\xff", b"tab\there"])
def test_a_file_without_a_token(tmp_path: Path, content: bytes) -> None:
    """The error names the file, and not its content."""
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(Unauthenticated) as caught:
        find_server(ServerOptions(url="http://x:1", token_file=str(tmp_path / "t")), NONE, {})
    assert "words" not in str(caught.value)


def test_a_missing_token_file(tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated, match="cannot read the token"):
        find_server(ServerOptions(url="http://x:1", token_file=str(tmp_path / "none")), NONE, {})


@pytest.mark.parametrize("url", ["localhost:7520", "ftp://x", "http://"])
def test_invalid_address(url: str) -> None:
    with pytest.raises(Invalid, match="no server address"):
        find_server(ServerOptions(url=url), NONE, {})


def test_data_folder_and_settings_file() -> None:
    """Default folders, and those from options and the environment."""
    assert data_folder("", {"XDG_DATA_HOME": "/x"}) == Path("/x/aliquot")
    assert data_folder("", {"ALIQUOT_DATA_DIR": "/y", "XDG_DATA_HOME": "/x"}) == Path("/y")
    assert data_folder("/z", {"ALIQUOT_DATA_DIR": "/y"}) == Path("/z")
    assert settings_file("", "", {"HOME": "/h"}).parts[-3:] == (".config", "aliquot", "config.json")
    env = {"RUNAI_CLI_CONFIG_PATH": "/c", "RUNAI_CLI_CONFIG_FILE": "mine.json"}
    assert settings_file("", "", env) == Path("/c/mine.json")
    assert settings_file("/d", "other.json", env) == Path("/d/other.json")


def test_settings_are_private_and_keep_unknown_fields(tmp_path: Path) -> None:
    """Only the owner can read the file, and unknown fields are kept."""
    path = tmp_path / "folder" / "config.json"
    save_settings(path, project="team-a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text('{"project": "team-a", "colour": "blue"}')
    save_settings(path, project="team-b")
    assert json.loads(path.read_text()) == {"project": "team-b", "colour": "blue"}
    assert load_settings(path).project == "team-b"
    assert load_settings(tmp_path / "none") == Settings()


@pytest.mark.parametrize("text", ["{", "[]", '{"project": 1}'])
def test_broken_settings_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(Invalid, match="config"):
        load_settings(path)


def test_settings_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlatformError):
        save_settings(tmp_path / "file" / "config.json", project="a")
