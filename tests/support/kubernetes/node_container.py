"""A container for a test node: a set of Linux namespaces that ends as a whole.

Its first process waits on a pipe that the tests hold. When the tests end, however that happens, the process ends, and
the kernel kills every other process of the container, and then removes its mounts and interfaces, which are not visible
outside. The kernel does not remove control groups: `cleanup_script` does.

The folders /run, /var/lib and /var/log are the container's own, so that nothing written there remains. The rest of the
file system is the host's. Ports, routes and packet filters are its own, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from support.kubernetes.cluster import ClusterError
from support.kubernetes.node_network import NODES, NodeNetwork, run_ip

OWN_FOLDERS = ("run", "var/lib", "var/log")
# A kubelet requires these values, and would set them on the host. In the container it reads them from these files.
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
# $0 is the folder. It blocks in `cat`. The shell remains, because it also reaps the container's orphans.
FIRST_PROCESS = f"""set -e
for d in {" ".join(OWN_FOLDERS)}; do mount --bind "$0/$d" "/$d"; done
for f in {" ".join(SYSCTLS)}; do [ ! -e "/proc/sys/$f" ] || mount --bind "$0/sys/$f" "/proc/sys/$f"; done
mount --make-rshared /
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
cat >/dev/null
:
"""
CGROUPS = Path("/sys/fs/cgroup")


class NodeContainer:
    """Number N of a network. After `kill` it can be started again, with empty folders."""

    def __init__(self, folder: Path, network: NodeNetwork, number: int) -> None:
        if not 1 <= number <= NODES:
            raise ClusterError(f"node {number}: a network has addresses for 1 to {NODES}")
        self.folder = folder
        self.address = network.node(number)
        self.cgroup = f"aliquot{network.number}-{number}"  # parent of the control groups of its pods
        self._network, self._number = network, number
        self._link = f"aliquot{network.number}n{number}"
        self._unshare: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of the first process; 0 if it does not run

    def start(self) -> None:
        self._write_folder()
        self._create_cgroups()
        unshare = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc"]
        log = self.folder / "container.log"
        with log.open("wb") as errors:
            self._unshare = subprocess.Popen(
                [*unshare, "sh", "-c", FIRST_PROCESS, str(self.folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        assert self._unshare.stdout is not None
        with self._unshare.stdout as output:
            if output.readline() != b"ready\n":
                raise ClusterError(f"no namespaces for a node: {log.read_text().strip()}")
        self.pid = int(Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text())
        self._connect()

    def kill(self) -> None:
        """Kills every process at once, as a power failure would."""
        if self._unshare is None:
            return
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        assert self._unshare.stdin is not None
        self._unshare.stdin.close()
        self._unshare.wait()
        self._unshare, self.pid = None, 0
        self.clean()

    def cleanup_script(self) -> str:
        """A script that waits for the container's last process and removes what the kernel does not."""
        return f"""while [ {self.pid} != 0 ] && kill -9 {self.pid} 2>/dev/null; do sleep 0.02; done
ip link delete {self._link} 2>/dev/null
for d in {CGROUPS}/{self.cgroup} {CGROUPS}/*/{self.cgroup}; do
  [ ! -d "$d" ] || find "$d" -depth -type d -exec rmdir {{}} +
done
"""

    def clean(self) -> None:
        """Removes what is left of it, or of an earlier one of the same number whose tests and guard were killed."""
        subprocess.run(["sh", "-c", self.cleanup_script()], check=True)

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in the container."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--ipc", "--uts", *command]

    # --- internals

    def _write_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in OWN_FOLDERS:
            (self.folder / folder).mkdir(parents=True)
        for name, value in SYSCTLS.items():
            file = self.folder / "sys" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")

    def _create_cgroups(self) -> None:
        """One control group, or one per controller with cgroup version 1."""
        if (CGROUPS / "cgroup.controllers").exists():
            (CGROUPS / self.cgroup).mkdir()
            return
        for controller in (folder for folder in CGROUPS.iterdir() if folder.is_dir() and folder.name != "unified"):
            group = controller / self.cgroup
            group.mkdir(exist_ok=True)  # cpu and cpuacct may be one folder with two names
            for setting in ("cpuset.cpus", "cpuset.mems"):  # a new group has none, and then accepts no process
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
