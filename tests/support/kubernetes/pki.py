"""Certificates of a test cluster, created with openssl. Elliptic curves, because RSA keys take a second each."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

SUBJECTS = {  # name -> (subject, subject alternative names)
    "apiserver": ("/CN=kube-apiserver", "IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc"),
    "admin": ("/O=system:masters/CN=admin", ""),
    "controllers": ("/CN=system:kube-controller-manager", "IP:127.0.0.1"),
}


def write_pki(folder: Path, address: str) -> None:
    """An authority, one certificate per subject, and the key pair that signs service account tokens.

    `address` is where the API server listens.
    """
    folder.mkdir(mode=0o700)
    _key(folder, "ca")
    _openssl(folder, "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=test-ca", "-days", "30", "-out", "ca.crt")
    for name, (subject, alternative_names) in SUBJECTS.items():
        write_certificate(
            folder, name, subject, f"IP:{address},{alternative_names}" if name == "apiserver" else alternative_names
        )
    _key(folder, "sa")
    _openssl(folder, "ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def write_certificate(folder: Path, name: str, subject: str, alternative_names: str = "") -> None:
    """`name.key` and `name.crt`, signed by the folder's authority, for servers and clients alike."""
    _key(folder, name)
    extensions = ["keyUsage=digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
    if alternative_names:
        extensions.append(f"subjectAltName={alternative_names}")
    (folder / f"{name}.ext").write_text("\n".join(extensions) + "\n")
    _openssl(folder, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
        "-set_serial", str(secrets.randbits(63) + 1),  # random: no shared file with the next serial
        "-days", "30", "-out", f"{name}.crt", "-extfile", f"{name}.ext",
    )  # fmt: skip


def _key(folder: Path, name: str) -> None:
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
