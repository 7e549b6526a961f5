"""The user's settings: a small JSON file that only its owner can read, because it may hold a token.

    {"url": "http://127.0.0.1:7520", "token": "...", "project": "team-a"}

Unknown fields are kept when the file is written, so that an older version does not drop a newer version's settings.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.errors import Invalid, PlatformError


@dataclass(frozen=True, slots=True)
class Settings:
    """The contents of config.json; a missing field is empty."""

    url: str = ""
    token: str = field(default="", repr=False)
    project: str = ""


def settings_file(folder: str = "", name: str = "", env: Mapping[str, str] = os.environ) -> Path:
    """The path of the settings. With an absolute `name` the folder does not matter."""
    base = folder or env.get("RUNAI_CLI_CONFIG_PATH", "")
    chosen = Path(name or env.get("RUNAI_CLI_CONFIG_FILE") or "config.json").expanduser()
    if base:
        return Path(base).expanduser() / chosen
    home = env.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "aliquot" / chosen


def load_settings(path: Path) -> Settings:
    data = _read(path)
    for name in ("url", "token", "project"):
        if not isinstance(data.get(name, ""), str):
            raise Invalid(f"{path}: {name}: must be text", hint="correct the file or remove it")
    return Settings(url=data.get("url", ""), token=data.get("token", ""), project=data.get("project", ""))


def save_settings(path: Path, **changes: str) -> None:
    """Change some settings atomically: a reader sees the old file or the new one."""
    data = _read(path) | changes
    kept = {name: value for name, value in data.items() if value != ""}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")  # created with mode 0600
        with os.fdopen(handle, "w") as out:
            json.dump(kept, out, indent=2)
            out.write("\n")
        Path(temporary).replace(path)
    except OSError as exc:
        raise PlatformError(f"cannot write {path}: {exc.strerror}", hint="choose a folder with --config-path") from exc


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise Invalid(f"cannot read {path}: {exc.strerror}", hint="choose another folder with --config-path") from exc
    except ValueError as exc:
        raise Invalid(f"{path} is not JSON: {exc}", hint="correct the file or remove it") from exc
    if not isinstance(data, dict):
        raise Invalid(f"{path}: must be a JSON object", hint="correct the file or remove it")
    return data
