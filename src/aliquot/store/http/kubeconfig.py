"""Finds a cluster and our credentials there, as kubectl and pods do.

    kubeconfig   the files in $KUBECONFIG (the first file that defines a name wins), else ~/.kube/config
    in a pod     the service account that Kubernetes mounts

Paths in a kubeconfig are relative to that file. Every error is one line with the file and the field.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from aliquot.api import Json
from aliquot.errors import Invalid
from aliquot.store.http.credentials import (
    EXEC_VERSIONS,
    FileToken,
    Plugin,
    PluginToken,
    fixed,
    reason,
    use_certificate,
    use_certificate_files,
)
from aliquot.store.http.transport import Endpoint, keep_token, no_token

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Section:
    """One named cluster, user or context of a file. Its repr shows no fields, because some are secret."""

    file: Path
    title: str  # "user 'admin'"
    fields: Json

    def __repr__(self) -> str:
        return f"Section({self.file}: {self.title})"

    def fault(self, field: str, what: str) -> Invalid:
        return Invalid(f"{self.file}: {self.title}: {field} {what}")

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.fault(field, "must be text")
        return value

    def flag(self, field: str) -> bool:
        value = self.fields.get(field, False)
        if not isinstance(value, bool):
            raise self.fault(field, "must be true or false")
        return value

    def path(self, field: str) -> Path:
        return self.file.parent / Path(self.text(field)).expanduser()

    def embedded(self, field: str) -> str:
        """The text of a `...-data` field, which is base64."""
        try:
            return base64.b64decode(self.text(field), validate=True).decode()
        except ValueError as exc:
            raise self.fault(field, "is not base64 of text") from exc


def find(path: str = "", context: str = "", env: Mapping[str, str] = os.environ) -> Endpoint:
    """The cluster from the given file, $KUBECONFIG, the home folder or the pod we run in, in this order."""
    files = files_of(path, env)
    existing = [file for file in files if file.exists()]
    if path and not existing:
        raise Invalid(f"{path}: no such file", hint="name a kubeconfig that exists")
    if existing:
        return load(existing, context)
    if env.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(env=env)
    raise Invalid(
        f"no kubeconfig in {', '.join(map(str, files))}",
        hint="name one with --kubeconfig or in the variable KUBECONFIG",
    )


def files_of(path: str = "", env: Mapping[str, str] = os.environ) -> list[Path]:
    """The files to read; some may not exist."""
    if path:
        return [Path(path).expanduser()]
    listed = [Path(part).expanduser() for part in env.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path("~/.kube/config").expanduser()]


def load(files: list[Path], context: str = "") -> Endpoint:
    """The cluster and user of the given context, or of the current context."""
    configs = [(file.absolute(), _config(file)) for file in files]
    wanted = context or next((str(c["current-context"]) for _, c in configs if c.get("current-context")), "")
    if not wanted:
        raise Invalid(f"{files[0]}: current-context is not set", hint="name a context")
    chosen = _section(configs, "contexts", "context", wanted)
    cluster = _section(configs, "clusters", "cluster", chosen.text("cluster"))
    user = _section(configs, "users", "user", chosen.text("user")) if chosen.text("user") else _anonymous(chosen)
    return _endpoint(cluster, user)


def in_cluster(folder: Path = ACCOUNT, env: Mapping[str, str] = os.environ) -> Endpoint:
    """The cluster of the pod we run in, with the pod's service account."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise Invalid(f"not in a pod with a service account: no {'server in the environment' if not host else folder}")
    if ":" in host:
        host = f"[{host}]"
    authority = _file(folder / "ca.crt", "the service account's ca.crt")
    trust = _trust(authority, "ca.crt", folder)
    return Endpoint(f"https://{host}:{port}", token=FileToken(folder / "token"), trust=trust, authority=authority)


def _config(file: Path) -> Json:
    try:
        data: Any = yaml.safe_load(_file(file, "the kubeconfig"))
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Invalid(f"{file}: not valid YAML{where}: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise Invalid(f"{file}: not valid YAML") from exc
    if not isinstance(data, dict):
        raise Invalid(f"{file}: not a kubeconfig: it must hold an object")
    return data


def _section(configs: list[tuple[Path, Json]], group: str, key: str, name: str) -> Section:
    """The first entry of that name in the files."""
    for file, config in configs:
        entries = config.get(group) or []
        if not isinstance(entries, list):
            raise Invalid(f"{file}: {group} must be a list")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                fields = entry.get(key)
                if not isinstance(fields, dict):
                    raise Invalid(f"{file}: {key} {name!r}: {key} must be an object")
                return Section(file, f"{key} {name!r}", fields)
    raise Invalid(f"{configs[0][0]}: no {key} {name!r}", hint=f"look at its {group}")


def _anonymous(context: Section) -> Section:
    return Section(context.file, context.title, {})


def _endpoint(cluster: Section, user: Section) -> Endpoint:
    url = cluster.text("server")
    if not url.startswith(("https://", "http://")):
        raise cluster.fault("server", "must be an address such as https://host:6443")
    authority = _authority(cluster)
    trust = _cluster_trust(cluster, authority) if url.startswith("https://") else None
    _use_client_certificate(user, trust)
    token, refused = _identity(cluster, user, trust)
    headers = _impersonated(user)
    name, proxy = cluster.text("tls-server-name"), cluster.text("proxy-url")
    try:
        return Endpoint(url, token, refused, trust, name, proxy, headers, authority)
    except Invalid as exc:
        raise cluster.fault("server", f"is wrong: {exc.message}") from exc


def _identity(
    cluster: Section, user: Section, trust: ssl.SSLContext | None
) -> tuple[Callable[[], Awaitable[str]], Callable[[str], None]]:
    """The source of tokens (exec plugin, token file or constant), and the callback for a refused token."""
    if user.fields.get("exec") is not None:
        source = PluginToken(_plugin(cluster, user), trust)
        return source, source.refused
    for unsupported in ("auth-provider", "username", "password"):
        if user.fields.get(unsupported) is not None:
            raise user.fault(unsupported, "is not supported; use a token, a client certificate or exec")
    if user.text("tokenFile"):
        return FileToken(user.path("tokenFile")), keep_token
    return (fixed(user.text("token")) if user.text("token") else no_token), keep_token


def _impersonated(user: Section) -> tuple[tuple[str, str], ...]:
    groups = user.fields.get("as-groups") or []
    if not isinstance(groups, list):
        raise user.fault("as-groups", "must be a list")
    headers = [("Impersonate-User", user.text("as")), ("Impersonate-Uid", user.text("as-uid"))]
    headers += [("Impersonate-Group", str(group)) for group in groups]
    if user.fields.get("as-user-extra"):
        raise user.fault("as-user-extra", "is not supported")
    return tuple((name, value) for name, value in headers if value)


def _authority(cluster: Section) -> str:
    """The CA certificates as PEM; empty for the system's, or when the server is not verified."""
    if cluster.flag("insecure-skip-tls-verify"):
        return ""
    if cluster.text("certificate-authority-data"):
        return cluster.embedded("certificate-authority-data")
    if cluster.text("certificate-authority"):
        return _file(cluster.path("certificate-authority"), f"{cluster.title}: certificate-authority")
    return ""


def _cluster_trust(cluster: Section, authority: str) -> ssl.SSLContext:
    if cluster.flag("insecure-skip-tls-verify"):
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        return trust
    if authority:
        field = "certificate-authority-data" if cluster.text("certificate-authority-data") else "certificate-authority"
        return _trust(authority, field, cluster)
    return ssl.create_default_context()


def _trust(authority: str, field: str, source: Section | Path) -> ssl.SSLContext:
    try:
        trust = ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as exc:
        if isinstance(source, Section):
            raise source.fault(field, "is not a certificate in PEM form") from exc
        raise Invalid(f"{source}/{field}: not a certificate in PEM form") from exc
    # Newer Python versions reject CA certificates without key usage. Many clusters have such, and kubectl accepts them.
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return trust


def _use_client_certificate(user: Section, trust: ssl.SSLContext | None) -> None:
    parts = {part: bool(user.text(part) or user.text(f"{part}-data")) for part in ("client-certificate", "client-key")}
    if not any(parts.values()) or trust is None:
        return
    for part, present in parts.items():
        if not present:
            raise user.fault(part, "is missing: a client certificate needs its key")
    where = f"{user.file}: {user.title}"
    if user.text("client-certificate-data") or user.text("client-key-data"):
        certificate, key = (_pem(user, part) for part in parts)
        use_certificate(trust, certificate, key, where)
    else:
        certificate_file, key_file = (user.path(part) for part in parts)
        for part, path in zip(parts, (certificate_file, key_file), strict=True):
            _file(path, f"{where}: {part}")
        use_certificate_files(trust, certificate_file, key_file, where)


def _pem(user: Section, part: str) -> str:
    if user.text(f"{part}-data"):
        return user.embedded(f"{part}-data")
    return _file(user.path(part), f"{user.file}: {user.title}: {part}")


def _plugin(cluster: Section, user: Section) -> Plugin:
    fields = user.fields["exec"]
    if not isinstance(fields, dict):
        raise user.fault("exec", "must be an object")
    section = Section(user.file, f"{user.title}: exec", fields)
    command, version = section.text("command"), section.text("apiVersion")
    if not command:
        raise section.fault("command", "is required")
    if version not in EXEC_VERSIONS:
        raise section.fault("apiVersion", f"must be one of {', '.join(EXEC_VERSIONS)}, not {version!r}")
    if section.text("interactiveMode") == "Always":
        raise section.fault("interactiveMode", "must not be Always: there is no terminal here")
    arguments, variables = fields.get("args") or [], fields.get("env") or []
    if not isinstance(arguments, list) or not isinstance(variables, list):
        raise section.fault("args and env", "must be lists")
    if not all(isinstance(pair, dict) and isinstance(pair.get("name"), str) for pair in variables):
        raise section.fault("env", "must hold objects with a name and a value")
    return Plugin(
        command=str(section.path("command")) if "/" in command else command,
        arguments=tuple(map(str, arguments)),
        environment={pair["name"]: str(pair.get("value", "")) for pair in variables},
        version=version,
        cluster=_cluster_info(cluster) if section.flag("provideClusterInfo") else None,
        install_hint=section.text("installHint"),
    )


def _cluster_info(cluster: Section) -> Json:
    """The cluster as `ExecCredential.spec.cluster` describes it."""
    authority = cluster.text("certificate-authority-data")
    if not authority and cluster.text("certificate-authority"):
        authority = base64.b64encode(_file(cluster.path("certificate-authority"), cluster.title).encode()).decode()
    info = {
        "server": cluster.text("server"),
        "tls-server-name": cluster.text("tls-server-name"),
        "insecure-skip-tls-verify": cluster.flag("insecure-skip-tls-verify"),
        "certificate-authority-data": authority,
        "proxy-url": cluster.text("proxy-url"),
    }
    return {key: value for key, value in info.items() if value}


def _file(path: Path, what: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise Invalid(f"{what}: cannot read {path}: {reason(exc)}") from exc
