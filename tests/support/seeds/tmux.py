"""A terminal that a test types into and reads from: a detached tmux session."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.waiting import wait_until

PROMPT = "you> "  # of the local shell


def needs_tmux() -> None:
    if os.environ.get("CI") != "true" and shutil.which("tmux") is None:
        pytest.skip("install tmux to drive a terminal as a person does")


class Screen:
    def __init__(self, environment: Mapping[str, str], folder: Path, columns: int = 120, rows: int = 40) -> None:
        # A tmux server of its own, independent of the settings and sessions of the user who runs the tests. The folder
        # of the test cannot hold its socket: the path of a socket has at most 107 characters.
        self._folder = tempfile.TemporaryDirectory(prefix="tmux-")
        self._socket = Path(self._folder.name) / "socket"
        self._environment = dict(environment)
        rc = Path(self._folder.name) / "rc"
        rc.write_text(f"PS1='{PROMPT}'\n")
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(folder),
            f"exec bash --noprofile --rcfile {rc}",
        )  # fmt: skip

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"tmux {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        self._tmux("kill-server")
        self._folder.cleanup()

    @property
    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def type(self, line: str) -> None:
        """Type a line and press Enter."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        """Press a key, such as C-c."""
        self._tmux("send-keys", key)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def shows(self, text: str) -> None:
        """Wait until a line begins with this text."""
        self.matches("^" + re.escape(text))

    def matches(self, pattern: str) -> None:
        """Wait until a line matches the pattern."""
        regex, screen = re.compile(pattern, re.MULTILINE), [""]

        def is_shown() -> bool:
            screen[0] = self.text
            return regex.search(screen[0]) is not None

        try:
            wait_until(is_shown, pattern)
        except AssertionError:
            raise AssertionError(f"no line like {pattern!r} on the screen:\n{screen[0]}") from None
