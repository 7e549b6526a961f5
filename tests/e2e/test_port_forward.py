"""`runai port-forward` on one machine: command, server, agent, job."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.seeds.platform import SECONDS, Platform
from support.waiting import wait_until

# Any free port: jobs share the machine's network.
SERVES = "echo hello >index.html; exec python3 -u -m http.server --bind 127.0.0.1 0"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    made = Platform(Path(sys.executable).parent, tmp_path / "platform").up()
    assert made.sh("runai config project team-a").status == 0
    yield made
    made.down()


def test_a_web_server(platform: Platform) -> None:
    """A job's web server is read through a port here; that of another job is not reached through it."""
    for job in ("web", "other"):
        platform.submit(job, "team-a", f"-i python --interactive --command sh --args -c --args '{SERVES}'")
    ports = {job: _port(platform, job) for job in ("web", "other")}
    words = [f"--port :{port}" for port in ports.values()]
    forward = subprocess.Popen(
        ["bash", "-c", f"exec runai port-forward web --address 127.0.0.1 {' '.join(words)}"],
        env=platform.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert forward.stdout is not None
        web, other = (int(re.split("[: ]", forward.stdout.readline())[3]) for _ in ports)
        assert _get(web) == b"hello\n"
        with pytest.raises(OSError, match=r"reset|Remote end closed"):
            _get(other)
        assert forward.stderr is not None
        assert f"nothing in pod web-0-0 listens on port {ports['other']}" in forward.stderr.readline()
        assert _get(web) == b"hello\n"
    finally:
        forward.kill()
        forward.communicate()


def _port(platform: Platform, job: str) -> int:
    """The one that its server says it took."""
    said = [""]

    def there() -> bool:
        said[0] = platform.sh(f"runai logs {job}").out
        return re.search(r"port (\d+)", said[0]) is not None

    wait_until(there, f"a port of {job}")
    found = re.search(r"port (\d+)", said[0])
    assert found
    return int(found[1])


def _get(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SECONDS) as answer:
        return bytes(answer.read())
