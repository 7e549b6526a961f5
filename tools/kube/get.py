#!/usr/bin/env python3
"""Finds or builds the Kubernetes programs that the tests run, and prints the folder they are in.

`KUBEBUILDER_ASSETS` wins when it names a folder with the programs (the convention of envtest).
Otherwise they are built once from Go modules, whose exact content `go.sum` pins, into a cache outside
the checkout; a later run finds them there in a moment. Standard library only, because `make kube`
must work before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSION = "v1.36.4"
# program -> (module folder, Go package, packages that a build from nothing compiles: only for the progress figure)
PROGRAMS = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3", 650),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", 1900),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", 500),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl", 300),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", 200),
    "kube-proxy": ("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", 100),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet", 500),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok", 700),
}
STAMP = "k8s.io/component-base/version"
FLAGS = f"-s -w -X {STAMP}.gitVersion={VERSION} -X {STAMP}.gitMajor=1 -X {STAMP}.gitMinor=36"


def main() -> int:
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        lacking = [name for name in PROGRAMS if not os.access(Path(given, name), os.X_OK)]
        if not lacking:
            print(given)
            return 0
        say(f"KUBEBUILDER_ASSETS={given} lacks {', '.join(lacking)}; looking elsewhere")
    target = cache_folder()
    target.mkdir(parents=True, exist_ok=True)
    with open(target / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs on one machine build once
        for name in PROGRAMS:
            if not (target / name).exists() and not build(name, target):
                return 1
    print(target)
    return 0


def cache_folder() -> Path:
    """A folder per content: another version, module set or flag never meets these programs."""
    seen = hashlib.sha256(FLAGS.encode())
    for part in sorted(HERE.glob("*/go.*")):
        seen.update(part.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "aliquot" / "kube" / f"{VERSION}-{seen.hexdigest()[:12]}"


def build(name: str, target: Path) -> bool:
    if shutil.which("go") is None:
        say("no Kubernetes programs: install Go 1.26 or newer, or set KUBEBUILDER_ASSETS to a folder that has them")
        return False
    module, package, expected = PROGRAMS[name]
    fresh = target / f".{name}.part"
    command = ["go", "build", "-v", "-trimpath", "-ldflags", FLAGS, "-o", str(fresh), package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    began, shown, packages = time.monotonic(), 0.0, 0
    last: list[str] = []
    say(f"building {name} {VERSION if module == 'kubernetes' else ''}".rstrip())
    with subprocess.Popen(command, cwd=HERE / module, env=environment, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            packages += 1
            last = [*last[-20:], line]
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                say(f"  {name}: {packages} of about {expected} packages, {shown - began:.0f} s")
    if run.returncode != 0:
        sys.stderr.writelines(last)
        say(f"building {name} failed; the lines above say why")
        return False
    fresh.rename(target / name)
    say(f"built {name} in {time.monotonic() - began:.0f} s")
    return True


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
