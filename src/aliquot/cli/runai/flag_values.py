"""Flags whose value has a grammar of its own: volumes, claims, ports, tolerations. Text in, JSON of the spec out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aliquot.api import Json
from aliquot.errors import Invalid


def parse_pairs(flag: str, text: str, known: Sequence[str]) -> dict[str, str]:
    """`key=value,key` as a mapping; a bare word has the value ""."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        key = key.strip().lower()
        if key not in known:
            raise Invalid(f"--{flag}: unknown key {key!r} in {text!r}: it has {', '.join(known)}")
        found[key] = value.strip()
    return found


def require_keys(flag: str, found: dict[str, str], *keys: str) -> None:
    missing = [key for key in keys if not found.get(key)]
    if missing:
        raise Invalid(f"--{flag}: {', '.join(missing)} is missing")


def without_empty(**values: Any) -> Json:
    """Only what was given."""
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _is_on(found: dict[str, str], key: str) -> bool:
    return key in found and found[key].lower() not in ("false", "0", "no")


def volume(text: str, nfs_server: str = "") -> tuple[str, Json]:
    """`SRC:DST[:ro|:rw][:HOST]`: which list of the storage it is for, and the entry."""
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
    found = parse_pairs("host-path", text, ("path", "mount", "mount-propagation", "readwrite", "name"))
    require_keys("host-path", found, "path", "mount")
    return without_empty(
        path=found["path"],
        mountPath=found["mount"],
        name=found.get("name"),
        readOnly=None if _is_on(found, "readwrite") else True,
        mountPropagation=found.get("mount-propagation"),
    )


def nfs(text: str) -> Json:
    found = parse_pairs("nfs", text, ("path", "server", "mountpath", "readwrite", "name"))
    require_keys("nfs", found, "path", "server", "mountpath")
    return without_empty(
        server=found["server"],
        path=found["path"],
        mountPath=found["mountpath"],
        name=found.get("name"),
        readOnly=None if _is_on(found, "readwrite") else True,
    )


def claim(text: str) -> Json:
    """`NAME:PATH[:ro]` is there already; `[CLASS]:SIZE:PATH[:ro]` is made."""
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
    found = parse_pairs("existing-pvc", text, ("claimname", "path", "ro", "readonly"))
    require_keys("existing-pvc", found, "claimname", "path")
    read_only = _is_on(found, "ro") or _is_on(found, "readonly")
    return without_empty(claimName=found["claimname"], path=found["path"], existing=True, readOnly=read_only or None)


_MODES = {"accessmode-rwo": "ReadWriteOnce", "accessmode-rom": "ReadOnlyMany", "accessmode-rwm": "ReadWriteMany"}


def new_claim(text: str) -> Json:
    keys = ("claimname", "storageclass", "size", "path", *_MODES, "ro", "ephemeral")
    found = parse_pairs("new-pvc", text, keys)
    require_keys("new-pvc", found, "size", "path")
    entry = without_empty(
        claimName=found.get("claimname"),
        storageClass=found.get("storageclass"),
        size=found["size"],
        path=found["path"],
        accessModes=[mode for key, mode in _MODES.items() if _is_on(found, key)],
        readOnly=_is_on(found, "ro") or None,
        ephemeral=_is_on(found, "ephemeral") or None,
    )
    return {"existing": False, **entry}


def git(text: str) -> Json:
    """Words of both grammars: source or repository, target or path."""
    keys = ("source", "repository", "branch", "rev", "username", "password", "secret", "target", "path", "name")
    found = parse_pairs("git-sync", text, keys)
    if found.get("password"):
        raise Invalid("--git-sync: passwords are not kept in workloads: give secret=NAME of a secret that holds it")
    source = found.get("source") or found.get("repository")
    if not source:
        raise Invalid("--git-sync: source is missing")
    return without_empty(
        repository=source,
        path=found.get("target") or found.get("path"),
        branch=found.get("branch"),
        revision=found.get("rev"),
        username=found.get("username"),
        secret=found.get("secret"),
        name=found.get("name"),
    )


def bucket(text: str) -> Json:
    found = parse_pairs("s3", text, ("bucket", "key", "secret", "accesskey", "url", "target", "path", "name"))
    if found.get("key"):
        raise Invalid("--s3: keys are not kept in workloads: give accesskey=NAME of a secret that holds them")
    path = found.get("target") or found.get("path")
    if not path:
        raise Invalid("--s3: target is missing")
    require_keys("s3", found, "bucket")
    secret = found.get("accesskey") or found.get("secret")
    return without_empty(bucket=found["bucket"], path=path, url=found.get("url"), secret=secret, name=found.get("name"))


def config_map(text: str) -> Json:
    found = parse_pairs("configmap-volume", text, ("name", "path", "subpath"))
    require_keys("configmap-volume", found, "name", "path")
    return without_empty(source=found["name"], path=found["path"], subPath=found.get("subpath"))


def ports(text: str) -> list[Json]:
    """`8888`, `30022:22`, several with commas, or `container=80,external=8080,service-type=NodePort`."""
    if "=" in text:
        found = parse_pairs("port", text, ("service-type", "container", "external", "protocol", "name"))
        require_keys("port", found, "container")
        kind = found.get("service-type", "").lower()
        entry = without_empty(
            container=_number("port", found["container"]),
            external=_number("port", found.get("external")),
            serviceType=kind,
            protocol=found.get("protocol", "").upper(),
            name=found.get("name"),
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
    """`nodeport`, or with its ports: `nodeport,port=30000:7070,port=9090`."""
    kind, *more = [part.strip() for part in text.split(",")]
    kind = kind.lower()
    found = []
    for part in more:
        key, _, value = part.partition("=")
        if key != "port":
            raise Invalid(f"--service-type: must be TYPE or TYPE,port=PORT, not {text!r}")
        found.append({**_port(value), "serviceType": kind})
    return kind, found


def _people(text: str | None) -> list[str]:
    return [name for name in (text or "").split(":") if name]


def external_url(text: str) -> Json:
    found = parse_pairs("external-url", text, ("container", "url", "authusers", "authgroups", "name"))
    require_keys("external-url", found, "container")
    users, groups = _people(found.get("authusers")), _people(found.get("authgroups"))
    return without_empty(
        container=_number("external-url", found["container"]),
        url=found.get("url"),
        toolName=found.get("name"),
        authorizedUsers=users,
        authorizedGroups=groups,
        authorizationType="authorizedUsersOrGroups" if users or groups else None,
    )


def serving_port(text: str) -> Json:
    if "=" not in text:
        return {"container": _number("serving-port", text)}
    keys = ("container", "protocol", "authorization-type", "authorized-users", "authorized-groups")
    found = parse_pairs("serving-port", text, keys)
    require_keys("serving-port", found, "container")
    return without_empty(
        container=_number("serving-port", found["container"]),
        protocol=found.get("protocol"),
        authorizationType=found.get("authorization-type"),
        authorizedUsers=_people(found.get("authorized-users")),
        authorizedGroups=_people(found.get("authorized-groups")),
    )


def toleration(text: str) -> Json:
    found = parse_pairs("toleration", text, ("operator", "key", "value", "effect", "seconds", "name"))
    seconds = found.get("seconds")
    if seconds and not (seconds.isascii() and seconds.isdigit()):
        raise Invalid(f"--toleration: seconds must be a whole number, not {seconds!r}")
    return without_empty(
        name=found.get("name"),
        key=found.get("key"),
        operator=found.get("operator"),
        value=found.get("value"),
        effect=found.get("effect"),
        tolerationSeconds=int(seconds) if seconds else None,
    )


def variable(text: str, flag: str = "environment") -> Json:
    """`NAME=VALUE`, where VALUE may be `SECRET:secret,key`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Invalid(f"--{flag}: must be NAME=VALUE, not {text!r}")
    if not value.startswith("SECRET:"):
        return {"name": name, "value": value}
    secret, comma, key = value.removeprefix("SECRET:").partition(",")
    if not secret or not comma or not key:
        raise Invalid(f"--{flag}: must be NAME=SECRET:secret,key, not {text!r}")
    return {"name": name, "secret": {"name": secret, "key": key}}


def key_values(flag: str, arguments: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise Invalid(f"--{flag}: must be KEY=VALUE, not {word!r}")
        found[key] = value
    return found


def resources(flag: str, arguments: Sequence[str]) -> list[Json]:
    return [{"resource": name, "quantity": amount} for name, amount in key_values(flag, arguments).items()]
