"""A machine inside the machine: a set of Linux namespaces that ends as a whole, for a node of a test cluster.

Its first process waits on a pipe that the tests hold: when they end, however that comes, it ends, and the kernel ends
every other process of the machine with it - and then its mounts and interfaces, which nobody else sees. What the kernel
leaves behind are control groups: `undo` is a script that removes them.

The folders /run, /var/lib and /var/log are the machine's own, so that nothing stays of what is written there; the rest
of the file system is the one of the real machine. Ports, routes and packet filters are its own, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from support.kubernetes.cluster import ClusterError
from support.kubernetes.node_network import NODES, NodeNetwork, run_ip

OWN = ("run", "var/lib", "var/log")
# A kubelet insists on these values, and would set them for the real machine. It reads them here instead.
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
# $0 is the folder. It stays in the line before the last: a shell, because that also buries the machine's orphans.
FIRST_PROCESS = f"""set -e
for d in {" ".join(OWN)}; do mount --bind "$0/$d" "/$d"; done
for f in {" ".join(TUNABLES)}; do [ ! -e "/proc/sys/$f" ] || mount --bind "$0/sys/$f" "/proc/sys/$f"; done
mount --make-rshared /
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
cat >/dev/null
:
"""
CGROUPS = Path("/sys/fs/cgroup")


class NodeContainer:
    """Number N of a network. After `kill` it can be started anew, with an empty disk."""

    def __init__(self, folder: Path, network: NodeNetwork, number: int) -> None:
        if not 1 <= number <= NODES:
            raise ClusterError(f"machine {number}: a network has room for 1 to {NODES}")
        self.folder = folder
        self.address = network.node(number)
        self.group = f"aliquot{network.number}-{number}"  # the control group of all its containers
        self._network, self._number = network, number
        self._link = f"aliquot{network.number}n{number}"
        self._unshare: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of the first process; 0 when it does not run

    def start(self) -> None:
        self._write_folder()
        self._make_groups()
        unshare = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc"]
        log = self.folder / "machine.log"
        with log.open("wb") as errors:
            self._unshare = subprocess.Popen(
                [*unshare, "sh", "-c", FIRST_PROCESS, str(self.folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        assert self._unshare.stdout is not None
        with self._unshare.stdout as said:
            if said.readline() != b"ready\n":
                raise ClusterError(f"no namespaces for a node: {log.read_text().strip()}")
        self.pid = int(Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text())
        self._connect()

    def kill(self) -> None:
        """As a power cut does it: every process ends at once, and nobody is told."""
        if self._unshare is None:
            return
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        assert self._unshare.stdin is not None
        self._unshare.stdin.close()
        self._unshare.wait()
        self._unshare, self.pid = None, 0
        self.clean()

    def undo(self) -> str:
        """A script that waits until the machine's last process has gone, and removes what the kernel does not."""
        return f"""while [ {self.pid} != 0 ] && kill -9 {self.pid} 2>/dev/null; do sleep 0.02; done
ip link delete {self._link} 2>/dev/null
for d in {CGROUPS}/{self.group} {CGROUPS}/*/{self.group}; do
  [ ! -d "$d" ] || find "$d" -depth -type d -exec rmdir {{}} +
done
"""

    def clean(self) -> None:
        """Removes what is left of it - or of one of the same number, whose tests and guard were killed."""
        subprocess.run(["sh", "-c", self.undo()], check=True)

    def inside(self, *command: str) -> list[str]:
        """The command that runs a command on the machine."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--ipc", "--uts", *command]

    # --- inside

    def _write_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for own in OWN:
            (self.folder / own).mkdir(parents=True)
        for name, value in TUNABLES.items():
            file = self.folder / "sys" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")

    def _make_groups(self) -> None:
        """One control group, or one per controller in version 1."""
        if (CGROUPS / "cgroup.controllers").exists():
            (CGROUPS / self.group).mkdir()
            return
        for controller in (one for one in CGROUPS.iterdir() if one.is_dir() and one.name != "unified"):
            group = controller / self.group
            group.mkdir(exist_ok=True)  # cpu and cpuacct may be one folder with two names
            for setting in ("cpuset.cpus", "cpuset.mems"):  # a new group has none, and takes no process so
                if (controller / setting).exists():
                    (group / setting).write_text((controller / setting).read_text())

    def _connect(self) -> None:
        others = [number for number in range(1, NODES + 1) if number != self._number]
        run_ip(
            f"link add {self._link} type veth peer name eth0 netns {self.pid}",
            f"link set {self._link} master {self._network.bridge} up",
        )
        run_ip(
            "link set lo up",
            f"address add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self._network.host}",
            *(f"route add {self._network.pods(other)} via {self._network.node(other)}" for other in others),
            namespace=self.pid,
        )
