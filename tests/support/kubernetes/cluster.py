"""A real Kubernetes control plane on loopback: etcd, the API server and the controller manager, ready in seconds.

Every cluster has its own folder, ports and certificates, so that several test runs can share a machine. Its programs
end with the process that started them, however that process ends: a guard (a shell that waits on a pipe) outlives it
for a moment, kills what is left and removes the folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.kubernetes.pki import write_certificate, write_pki

GET_PROGRAMS = Path(__file__).resolve().parents[3] / "tools" / "kube" / "get.py"
START_SECONDS = 90.0  # until a start counts as failed; 2 to 3 are usual, a busy machine takes far longer
TOKEN = "admin-token"
LOOPBACK = "127.0.0.1"
# Controllers that tests depend on. The others would slow down the start, and some would break tests: pods here are
# bound to nodes that do not exist, and the pod garbage collector deletes such pods.
CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)

# $0 is the folder. Reads until the pipe closes, then kills every program with a pid file and runs the cleanup scripts.
GUARD = """cat >/dev/null
for f in "$0"/*.pid; do [ -f "$f" ] && kill -9 "$(cat "$f")" 2>/dev/null; done
for f in "$0"/*.undo; do [ -f "$f" ] && sh "$f"; done
rm -rf "$0"
"""


class ClusterError(Exception):
    """A program of the cluster did not start; the message ends with the tail of its log."""


def programs() -> Path:
    """The folder of the Kubernetes programs; builds them first where there are none."""
    result = subprocess.run([sys.executable, str(GET_PROGRAMS)], stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise ClusterError("tools/kube/get.py found no Kubernetes programs and built none")
    return Path(result.stdout.strip())


def programs_ready() -> bool:
    """True when `programs()` would return at once instead of building for minutes."""
    spec = importlib.util.spec_from_file_location("kube_get", GET_PROGRAMS)
    assert spec is not None
    assert spec.loader is not None
    get = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(get)
    folders = [get.cache_folder(), *filter(None, [os.environ.get("KUBEBUILDER_ASSETS")])]
    return any(all(os.access(Path(folder, name), os.X_OK) for name in get.PROGRAMS) for folder in folders)


def free_port() -> int:
    """A free port, below those the kernel uses for outgoing connections, so that a restart finds it free."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Cluster:
    def __init__(
        self,
        binaries: Path,
        *api_arguments: str,
        address: str = LOOPBACK,
        controllers: Sequence[str] = CONTROLLERS,
        controller_arguments: Sequence[str] = (),
        held: Sequence[int] = (),
    ) -> None:
        """`api_arguments` and `controller_arguments` are further flags of the API server and the controller manager.

        `address` is where the API server listens. The guard keeps the file descriptors `held` open, such as locks.
        """
        self.binaries = binaries
        self.address = address
        self._api_arguments = api_arguments
        self._controller_arguments = (f"--controllers={','.join(controllers)}", *controller_arguments)
        self.folder = Path(tempfile.mkdtemp(prefix="aliquot-kube-"))
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True, pass_fds=held
        )
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.pki = self.folder / "pki"
        write_pki(self.pki, address)
        self.pki.joinpath("tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\nuser-token,user,user,users\n")
        self._trust = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        self._trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._ports = {name: free_port() for name in ("etcd", "peer", "api", "controllers")}

    @property
    def port(self) -> int:
        return self._ports["api"]

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    # --- start and stop

    def start(self) -> Cluster:
        """Starts everything and waits until it responds. On failure it cleans up; `ClusterError` has the log's tail."""
        try:
            self._start_etcd()
            for user in ("admin", "controllers"):
                self.write_kubeconfig(user)
            self.start_apiserver()
            self._start_controllers()
            self.wait_until_ready("kube-controller-manager", self._has_default_account)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            self._end(name, signal.SIGKILL)  # there is nothing to save
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
            self._guard.wait()

    def kill_apiserver(self) -> None:
        """Kills it, as a crash would."""
        self._end("kube-apiserver", signal.SIGKILL)

    def start_apiserver(self) -> None:
        """Starts it on the same port and returns when it is ready."""
        pki = self.pki
        self._spawn(
            "kube-apiserver",
            *self._api_arguments,
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self._ports['api']}",
            # An endpoint must not be a loopback address; any other becomes the Service `kubernetes`.
            f"--endpoint-reconciler-type={'none' if self.address == LOOPBACK else 'lease'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={pki}/tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--profiling=false",
            # After a kill the next one must not wait for the leases of this one.
            "--shutdown-delay-duration=0s",
        )
        self.wait_until_ready("kube-apiserver", self._ready)

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._spawn(
            "etcd",
            "--name=test",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=test={peer}",
            "--unsafe-no-fsync",
        )
        self.wait_until_ready("etcd", lambda: "header" in self._etcd("maintenance/status", {}))

    def _start_controllers(self) -> None:
        pki, config = self.pki, self.folder / "controllers.kubeconfig"
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['controllers']}",
            f"--tls-cert-file={pki}/controllers.crt",
            f"--tls-private-key-file={pki}/controllers.key",
            "--leader-elect=false",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials=true",
            *self._controller_arguments,
        )

    # --- for tests

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """The standard output of the real kubectl; `ClusterError` with its error output when it fails."""
        command = [str(self.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = {**os.environ, "HOME": str(self.folder)}  # its cache goes where the cluster goes
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=120, env=environment, check=False
        )
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def call(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The API server's response to its administrator: to GET, or to POST with a body."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        return _open(urllib.request.Request(self.server + path, data=data, headers=headers), self._trust)

    def create_namespace(self) -> str:
        """The name of a new namespace; it is never deleted."""
        name = f"test-{uuid.uuid4().hex[:10]}"
        self.call("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def compact_etcd(self) -> int:
        """Compacts etcd to its current revision, and returns that."""
        revision = int(self._etcd("maintenance/status", {})["header"]["revision"])
        self._etcd("kv/compaction", {"revision": revision, "physical": True})
        return revision

    # --- further programs

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Starts a program with its output in the log of that name; the caller ends it."""
        with self.log(name).open("ab") as out:
            # A session of its own: Ctrl-C ends the tests, and the tests end the cluster.
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "GOGC": "400"},  # a third less CPU for twice the memory
            )
        self._running[name] = process
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def wait_until_ready(self, name: str, ready: Callable[[], bool]) -> None:
        """Returns when the program of that name is ready; `ClusterError` when it ends before, or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if ready():
                    return
            except (OSError, ValueError):
                pass  # not listening yet, or no JSON yet
            if self._running[name].poll() is not None:
                raise ClusterError(f"{name} ended with {self._running[name].returncode}\n{self._tail(name)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{name} was not ready after {START_SECONDS:.0f} s\n{self._tail(name)}")
            time.sleep(0.05)

    def forget(self, name: str) -> None:
        """Waits for a spawned program that ends by itself, and forgets it."""
        if name in self._running:
            self._running.pop(name).wait()

    def write_identity(self, name: str, subject: str, served: str = "") -> None:
        """Writes a certificate of that subject, and a kubeconfig that uses it."""
        write_certificate(self.pki, name, subject, served)
        self.write_kubeconfig(name)

    def write_kubeconfig(self, user: str) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.server, "certificate-authority": "pki/ca.crt"}}],
            "users": [
                {"name": user, "user": {"client-certificate": f"pki/{user}.crt", "client-key": f"pki/{user}.key"}}
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        (self.folder / f"{user}.kubeconfig").write_text(json.dumps(config, indent=1))

    def on_end(self, name: str, script: str) -> None:
        """Registers a shell script that the guard runs at the end, in any case; a second call replaces it."""
        (self.folder / f"{name}.undo").write_text(script)

    # --- internals

    def _spawn(self, name: str, *arguments: str) -> None:
        process = self.spawn(name, str(self.binaries / name), *arguments)
        (self.folder / f"{name}.pid").write_text(str(process.pid))

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        process.send_signal(how)
        process.wait()
        (self.folder / f"{name}.pid").unlink(missing_ok=True)

    def _tail(self, name: str) -> str:
        lines = self.log(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])

    def _ready(self) -> bool:
        return self.call("/readyz") == b"ok"

    def _has_default_account(self) -> bool:
        return b'"name":"default"' in self.call("/api/v1/namespaces/default/serviceaccounts")

    def _etcd(self, path: str, body: dict[str, Any]) -> Any:
        url = f"http://127.0.0.1:{self._ports['etcd']}/v3/{path}"
        return json.loads(_open(urllib.request.Request(url, data=json.dumps(body).encode())))


def _open(request: urllib.request.Request, trust: ssl.SSLContext | None = None) -> bytes:
    # Ignore proxies of the environment: everything is on loopback.
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    if trust is not None:
        handlers.append(urllib.request.HTTPSHandler(context=trust))
    with urllib.request.build_opener(*handlers).open(request, timeout=5) as response:
        return bytes(response.read())
