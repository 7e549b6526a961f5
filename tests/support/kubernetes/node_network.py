"""Addresses for the nodes of one test run, on a bridge of its own, so that several runs can share a machine.

A run takes the lowest number K that no other run has locked (its cluster's guard keeps the lock until it ends). With it
come these addresses:

    198.18.K.0/24   the API server at .1, node n at .n+1      (a range reserved for tests of networks, RFC 2544,
    198.19.K.0/24   64 addresses for the pods of each node     so it is not in use on any machine)

Nodes are network namespaces: each has its own bridges, rules and ports.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from support.kubernetes.cluster import ClusterError

LOCKS = Path("/run/lock")
RUNS = 100
NODES = 4  # a /24 has four ranges of 64 addresses


class NodeNetwork:
    """The bridge of one run. Pass `lock` and `cleanup_script` to the cluster's guard."""

    def __init__(self) -> None:
        self.number, self.lock = _take_number()
        self.bridge = f"aliquot{self.number}"
        self.cleanup_script = f"ip link delete {self.bridge} 2>/dev/null || :\n"
        subprocess.run(["sh", "-c", self.cleanup_script], check=True)  # of an earlier run whose guard was killed
        run_ip(
            # A fixed address: otherwise the bridge uses that of a node, and loses it with the node.
            f"link add {self.bridge} address 02:00:00:00:00:{self.number:02x} type bridge",
            f"address add {self.host}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
            *(f"route add {self.pods(node)} via {self.node(node)}" for node in range(1, NODES + 1)),
        )

    @property
    def host(self) -> str:
        """The address of this machine, for nodes and pods."""
        return f"198.18.{self.number}.1"

    def node(self, node: int) -> str:
        return f"198.18.{self.number}.{node + 1}"

    def pods(self, node: int) -> str:
        return f"198.19.{self.number}.{64 * (node - 1)}/26"

    def close(self) -> None:
        """Closes the lock; the guard may still hold it."""
        os.close(self.lock)


def run_ip(*commands: str, namespace: int | None = None) -> None:
    """Runs commands of `ip`, in the network namespace of a process if one is given."""
    enter = [] if namespace is None else ["nsenter", f"--target={namespace}", "--net"]
    done = subprocess.run(
        [*enter, "ip", "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"ip failed: {done.stderr.strip()}")


def _take_number() -> tuple[int, int]:
    for number in range(RUNS):
        lock = os.open(LOCKS / f"aliquot-nodes-{number}", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return number, lock
    raise ClusterError(f"{RUNS} test runs with nodes on one machine: remove unused locks in {LOCKS}")
