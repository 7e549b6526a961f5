"""Parsers of flag values that have a syntax of their own: volumes, claims, ports, tolerations.

Each turns the text of a flag into the JSON of the spec; `Invalid` names the flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aliquot.api import Json
from aliquot.errors import Invalid


def parse_pairs(flag: str, text: str, known: Sequence[str]) -> dict[str, str]:
    """Parse `key=value,key`; a key without a value gets ""."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        key = key.strip().lower()
        if key not in known:
            raise Invalid(f"--{flag}: unknown key {key!r} in {text!r}: it has {', '.join(known)}")
        pairs[key] = value.strip()
    return pairs


def require_keys(flag: str, pairs: dict[str, str], *keys: str) -> None:
    missing = [key for key in keys if not pairs.get(key)]
    if missing:
        raise Invalid(f"--{flag}: {', '.join(missing)} is missing")


def without_empty(**values: Any) -> Json:
    """The values that are not None, "" or []."""
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _is_on(pairs: dict[str, str], key: str) -> bool:
    return key in pairs and pairs[key].lower() not in ("false", "0", "no")


def volume(text: str, nfs_server: str = "") -> tuple[str, Json]:
    """Parse `SRC:DST[:ro|:rw][:HOST]` into the field of the storage, nfs or hostPath, and its entry."""
    parts = text.split(":")
    if len(parts) < 2 or not parts[0] or not parts[1]:
        raise Invalid(f"--volume: must be SRC:DST[:ro|:rw][:NFS-HOST], not {text!r}")
    source, target, *more = parts
    read_only = None
    if more and more[0] in ("ro", "rw"):
        read_only = more.pop(0) == "ro"
    if len(more) > 1:
        raise Invalid(f"--volume: must be SRC:DST[:ro|:rw][:NFS-HOST], not {text!r}")
    server = more[0] if more else nfs_server
    entry = without_empty(path=source, mountPath=target, readOnly=read_only or None)
    return ("nfs", {"server": server, **entry}) if server else ("hostPath", entry)


def host_path(text: str) -> Json:
    pairs = parse_pairs("host-path", text, ("path", "mount", "mount-propagation", "readwrite", "name"))
    require_keys("host-path", pairs, "path", "mount")
    return without_empty(
        path=pairs["path"],
        mountPath=pairs["mount"],
        name=pairs.get("name"),
        readOnly=None if _is_on(pairs, "readwrite") else True,
        mountPropagation=pairs.get("mount-propagation"),
    )


def nfs(text: str) -> Json:
    pairs = parse_pairs("nfs", text, ("path", "server", "mountpath", "readwrite", "name"))
    require_keys("nfs", pairs, "path", "server", "mountpath")
    return without_empty(
        server=pairs["server"],
        path=pairs["path"],
        mountPath=pairs["mountpath"],
        name=pairs.get("name"),
        readOnly=None if _is_on(pairs, "readwrite") else True,
    )


def claim(text: str) -> Json:
    """Parse `NAME:PATH[:ro]`, an existing claim, or `[CLASS]:SIZE:PATH[:ro]`, a new one."""
    parts = text.split(":")
    read_only = True if parts[-1] == "ro" else None
    if parts[-1] in ("ro", "rw"):
        parts = parts[:-1]
    if len(parts) == 2 and all(parts):
        return without_empty(claimName=parts[0], path=parts[1], existing=True, readOnly=read_only)
    if len(parts) == 3 and parts[1] and parts[2]:
        new = without_empty(storageClass=parts[0], size=parts[1], path=parts[2], readOnly=read_only)
        return {"existing": False, **new}
    raise Invalid(f"--pvc: must be NAME:PATH[:ro], or [CLASS]:SIZE:PATH[:ro] for a new claim, not {text!r}")


def existing_claim(text: str) -> Json:
    pairs = parse_pairs("existing-pvc", text, ("claimname", "path", "ro", "readonly"))
    require_keys("existing-pvc", pairs, "claimname", "path")
    read_only = _is_on(pairs, "ro") or _is_on(pairs, "readonly")
    return without_empty(claimName=pairs["claimname"], path=pairs["path"], existing=True, readOnly=read_only or None)


_MODES = {"accessmode-rwo": "ReadWriteOnce", "accessmode-rom": "ReadOnlyMany", "accessmode-rwm": "ReadWriteMany"}


def new_claim(text: str) -> Json:
    keys = ("claimname", "storageclass", "size", "path", *_MODES, "ro", "ephemeral")
    pairs = parse_pairs("new-pvc", text, keys)
    require_keys("new-pvc", pairs, "size", "path")
    entry = without_empty(
        claimName=pairs.get("claimname"),
        storageClass=pairs.get("storageclass"),
        size=pairs["size"],
        path=pairs["path"],
        accessModes=[mode for key, mode in _MODES.items() if _is_on(pairs, key)],
        readOnly=_is_on(pairs, "ro") or None,
        ephemeral=_is_on(pairs, "ephemeral") or None,
    )
    return {"existing": False, **entry}


def git(text: str) -> Json:
    """Parse a git repository; source and repository mean the same, and so do target and path."""
    keys = ("source", "repository", "branch", "rev", "username", "password", "secret", "target", "path", "name")
    pairs = parse_pairs("git-sync", text, keys)
    if pairs.get("password"):
        raise Invalid("--git-sync: passwords are not kept in workloads: give secret=NAME of a secret that holds it")
    source = pairs.get("source") or pairs.get("repository")
    if not source:
        raise Invalid("--git-sync: source is missing")
    return without_empty(
        repository=source,
        path=pairs.get("target") or pairs.get("path"),
        branch=pairs.get("branch"),
        revision=pairs.get("rev"),
        username=pairs.get("username"),
        secret=pairs.get("secret"),
        name=pairs.get("name"),
    )


def bucket(text: str) -> Json:
    pairs = parse_pairs("s3", text, ("bucket", "key", "secret", "accesskey", "url", "target", "path", "name"))
    if pairs.get("key"):
        raise Invalid("--s3: keys are not kept in workloads: give accesskey=NAME of a secret that holds them")
    path = pairs.get("target") or pairs.get("path")
    if not path:
        raise Invalid("--s3: target is missing")
    require_keys("s3", pairs, "bucket")
    secret = pairs.get("accesskey") or pairs.get("secret")
    return without_empty(bucket=pairs["bucket"], path=path, url=pairs.get("url"), secret=secret, name=pairs.get("name"))


def config_map(text: str) -> Json:
    pairs = parse_pairs("configmap-volume", text, ("name", "path", "subpath"))
    require_keys("configmap-volume", pairs, "name", "path")
    return without_empty(source=pairs["name"], path=pairs["path"], subPath=pairs.get("subpath"))


def ports(text: str) -> list[Json]:
    """Parse `8888`, `30022:22`, several with commas, or `container=80,external=8080,service-type=NodePort`."""
    if "=" in text:
        pairs = parse_pairs("port", text, ("service-type", "container", "external", "protocol", "name"))
        require_keys("port", pairs, "container")
        kind = pairs.get("service-type", "").lower()
        entry = without_empty(
            container=_number("port", pairs["container"]),
            external=_number("port", pairs.get("external")),
            serviceType=kind,
            protocol=pairs.get("protocol", "").upper(),
            name=pairs.get("name"),
        )
        return [entry]
    return [_port(each.strip()) for each in text.split(",")]


def _port(text: str) -> Json:
    outside, colon, inside = text.rpartition(":")
    return without_empty(container=_number("port", inside), external=_number("port", outside) if colon else None)


def _number(flag: str, text: str | None) -> int | None:
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise Invalid(f"--{flag}: must be a port from 1 to 65535, or HOST:CONTAINER, not {text!r}")
    return int(text)


def service(text: str) -> tuple[str, list[Json]]:
    """Parse `nodeport`, or a type with its ports: `nodeport,port=30000:7070,port=9090`."""
    kind, *more = [part.strip() for part in text.split(",")]
    kind = kind.lower()
    service_ports = []
    for part in more:
        key, _, value = part.partition("=")
        if key != "port":
            raise Invalid(f"--service-type: must be TYPE or TYPE,port=PORT, not {text!r}")
        service_ports.append({**_port(value), "serviceType": kind})
    return kind, service_ports


def _split_names(text: str | None) -> list[str]:
    return [name for name in (text or "").split(":") if name]


def external_url(text: str) -> Json:
    pairs = parse_pairs("external-url", text, ("container", "url", "authusers", "authgroups", "name"))
    require_keys("external-url", pairs, "container")
    users, groups = _split_names(pairs.get("authusers")), _split_names(pairs.get("authgroups"))
    return without_empty(
        container=_number("external-url", pairs["container"]),
        url=pairs.get("url"),
        toolName=pairs.get("name"),
        authorizedUsers=users,
        authorizedGroups=groups,
        authorizationType="authorizedUsersOrGroups" if users or groups else None,
    )


def serving_port(text: str) -> Json:
    if "=" not in text:
        return {"container": _number("serving-port", text)}
    keys = ("container", "protocol", "authorization-type", "authorized-users", "authorized-groups")
    pairs = parse_pairs("serving-port", text, keys)
    require_keys("serving-port", pairs, "container")
    return without_empty(
        container=_number("serving-port", pairs["container"]),
        protocol=pairs.get("protocol"),
        authorizationType=pairs.get("authorization-type"),
        authorizedUsers=_split_names(pairs.get("authorized-users")),
        authorizedGroups=_split_names(pairs.get("authorized-groups")),
    )


def toleration(text: str) -> Json:
    pairs = parse_pairs("toleration", text, ("operator", "key", "value", "effect", "seconds", "name"))
    seconds = pairs.get("seconds")
    if seconds and not (seconds.isascii() and seconds.isdigit()):
        raise Invalid(f"--toleration: seconds must be a whole number, not {seconds!r}")
    return without_empty(
        name=pairs.get("name"),
        key=pairs.get("key"),
        operator=pairs.get("operator"),
        value=pairs.get("value"),
        effect=pairs.get("effect"),
        tolerationSeconds=int(seconds) if seconds else None,
    )


def variable(text: str, flag: str = "environment") -> Json:
    """Parse `NAME=VALUE`, where VALUE may be `SECRET:secret,key`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Invalid(f"--{flag}: must be NAME=VALUE, not {text!r}")
    if not value.startswith("SECRET:"):
        return {"name": name, "value": value}
    secret, comma, key = value.removeprefix("SECRET:").partition(",")
    if not secret or not comma or not key:
        raise Invalid(f"--{flag}: must be NAME=SECRET:secret,key, not {text!r}")
    return {"name": name, "secret": {"name": secret, "key": key}}


def key_values(flag: str, texts: Sequence[str]) -> dict[str, str]:
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise Invalid(f"--{flag}: must be KEY=VALUE, not {text!r}")
        values[key] = value
    return values


def resources(flag: str, texts: Sequence[str]) -> list[Json]:
    return [{"resource": name, "quantity": amount} for name, amount in key_values(flag, texts).items()]
