"""A terminal that a test types into and reads from, as a person does: tmux without anybody looking."""

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

PROMPT = "you> "  # of the shell outside


def needs_tmux() -> None:
    if os.environ.get("CI") != "true" and shutil.which("tmux") is None:
        pytest.skip("install tmux to drive a terminal as a person does")


class Screen:
    def __init__(self, environment: Mapping[str, str], folder: Path, columns: int = 120, rows: int = 40) -> None:
        # A server of its own, so that the settings and sessions of whoever runs the tests play no part. The folder of a
        # test is too deep for it: the address of a socket has at most 107 characters.
        self._place = tempfile.TemporaryDirectory(prefix="tmux-")
        self._socket = Path(self._place.name) / "socket"
        self._environment = dict(environment)
        rc = Path(self._place.name) / "rc"
        rc.write_text(f"PS1='{PROMPT}'\n")
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(folder),
            f"exec bash --noprofile --rcfile {rc}",
        )  # fmt: skip

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"tmux {' '.join(words)}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        self._tmux("kill-server")
        self._place.cleanup()

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
        """Wait until a line begins so."""
        self.matches("^" + re.escape(text))

    def matches(self, pattern: str) -> None:
        """Wait until a line matches."""
        wanted, seen = re.compile(pattern, re.MULTILINE), [""]

        def there() -> bool:
            seen[0] = self.text
            return wanted.search(seen[0]) is not None

        try:
            wait_until(there, pattern)
        except AssertionError:
            raise AssertionError(f"no line like {pattern!r} on the screen:\n{seen[0]}") from None
