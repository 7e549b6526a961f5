#!/usr/bin/env python3
"""Finds or builds the Kubernetes programs for the tests, and prints their folder.

`KUBEBUILDER_ASSETS` takes precedence if it names a folder with the programs (the convention of envtest).
Otherwise they are built once from Go modules, whose content `go.sum` pins, into a cache outside the checkout.
Uses the standard library only, because `make kube` must work before anything is installed.
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
# program -> (module folder, Go package, packages that a clean build compiles: only for the progress figure)
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
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        missing = [name for name in PROGRAMS if not os.access(Path(assets, name), os.X_OK)]
        if not missing:
            print(assets)
            return 0
        log(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}; it is not used")
    target = cache_folder()
    target.mkdir(parents=True, exist_ok=True)
    with open(target / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # concurrent test runs build once
        for name in PROGRAMS:
            if not (target / name).exists() and not build(name, target):
                return 1
    print(target)
    return 0


def cache_folder() -> Path:
    """One folder per version, set of modules and flags."""
    digest = hashlib.sha256(FLAGS.encode())
    for file in sorted(HERE.glob("*/go.*")):
        digest.update(file.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "aliquot" / "kube" / f"{VERSION}-{digest.hexdigest()[:12]}"


def build(name: str, target: Path) -> bool:
    if shutil.which("go") is None:
        log("no Kubernetes programs: install Go 1.26 or newer, or set KUBEBUILDER_ASSETS to a folder that has them")
        return False
    module, package, expected = PROGRAMS[name]
    fresh = target / f".{name}.part"
    command = ["go", "build", "-v", "-trimpath", "-ldflags", FLAGS, "-o", str(fresh), package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    started, reported, packages = time.monotonic(), 0.0, 0
    tail: list[str] = []
    log(f"building {name} {VERSION if module == 'kubernetes' else ''}".rstrip())
    with subprocess.Popen(command, cwd=HERE / module, env=environment, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            packages += 1
            tail = [*tail[-20:], line]
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                log(f"  {name}: {packages} of about {expected} packages, {reported - started:.0f} s")
    if run.returncode != 0:
        sys.stderr.writelines(tail)
        log(f"building {name} failed; the lines above say why")
        return False
    fresh.rename(target / name)
    log(f"built {name} in {time.monotonic() - started:.0f} s")
    return True


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
