"""`runai port-forward` on one machine, with command, server, agent and job."""

from __future__ import annotations

import re
import subprocess
import urllib.request

import pytest

from support.seeds.platform import SECONDS, Platform
from support.waiting import wait_until

# Any free port: jobs share the machine's network.
SERVES = "echo hello >index.html; exec python3 -u -m http.server --bind 127.0.0.1 0"


@pytest.fixture(autouse=True)
def project_team_a(platform: Platform) -> None:
    assert platform.sh("runai config project team-a").status == 0


def test_a_web_server(platform: Platform) -> None:
    """The forwarded port reaches the web server of the job, and not that of another job."""
    for job in ("web", "other"):
        platform.submit(job, "team-a", f"-i python --interactive --command sh --args -c --args '{SERVES}'")
    ports = {job: _port(platform, job) for job in ("web", "other")}
    flags = [f"--port :{port}" for port in ports.values()]
    forward = subprocess.Popen(
        ["bash", "-c", f"exec runai port-forward web --address 127.0.0.1 {' '.join(flags)}"],
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
    """The port that the web server of the job printed."""
    log = [""]

    def has_port() -> bool:
        log[0] = platform.sh(f"runai logs {job}").out
        return re.search(r"port (\d+)", log[0]) is not None

    wait_until(has_port, f"a port of {job}")
    match = re.search(r"port (\d+)", log[0])
    assert match
    return int(match[1])


def _get(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SECONDS) as answer:
        return bytes(answer.read())
