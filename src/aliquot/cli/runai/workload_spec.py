"""From flags to a workload: what was given, as the spec's JSON; then checked as a whole, with faults named by flag."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aliquot.api import KINDS, Json, Workload, check_name, decode, to_json
from aliquot.cli.runai import flag_values
from aliquot.cli.runai.flags import COMMON, DISTRIBUTED, SERVING, Flag
from aliquot.errors import Fault, Invalid

_GPU = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)", re.ASCII)


@dataclass(frozen=True)
class SubmitFlags:
    """What a command line said: values by key, and the words after `--` (None: there was no `--`)."""

    values: Mapping[str, Any]
    rest: Sequence[str] | None = None
    off: frozenset[str] = frozenset()
    framework: str = ""
    flags: tuple[Flag, ...] = field(default=(*COMMON, *SERVING))

    def text(self, key: str) -> str:
        return self.values.get(key) or ""

    def many(self, key: str) -> list[str]:
        return list(self.values.get(key) or ())

    def listed(self, key: str) -> list[str]:
        """Repeated, or with commas."""
        return [part.strip() for each in self.many(key) for part in each.split(",") if part.strip()]

    def switch(self, key: str) -> bool | None:
        """None: not given."""
        return False if key in self.off else True if self.values.get(key) else None


def spec_from_flags(given: SubmitFlags) -> Json:
    """The spec's JSON, unchecked: only what was given."""
    spec: Json = {}
    for flag in given.flags:
        value = _value(given, flag)
        if flag.spec_path and value is not None:
            set_path(spec, flag.spec_path, value)
    for part in _PARTS:
        part(given, spec)
    return spec


def _value(given: SubmitFlags, flag: Flag) -> Any:
    match flag.form:
        case "switch":
            return given.switch(flag.key)
        case "list":
            return given.listed(flag.key) or None
        case "many":
            return given.many(flag.key) or None
        case _:
            return given.values.get(flag.key)


def set_path(spec: Json, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        spec = spec.setdefault(name, {})
    spec[last] = value


def _put_all(spec: Json, path: str, values: Sequence[Any]) -> None:
    if values:
        set_path(spec, path, list(values))


# --- the parts that one field cannot say


def _type(given: SubmitFlags, spec: Json) -> None:
    interactive = given.switch("interactive") or given.switch("jupyter")
    if interactive and given.switch("inference"):
        raise Invalid("--inference and --interactive: give one of them")
    spec["type"] = "inference" if given.switch("inference") else "interactive" if interactive else "training"
    stray = [f"--{flag.name}" for flag in given.flags if flag.spec_path.startswith("serving.") and _value(given, flag)]
    if stray and spec["type"] != "inference":
        raise Invalid(f"{stray[0]}: needs --inference")
    if given.switch("jupyter"):
        spec["jupyter"] = True
    if given.framework:
        set_path(spec, "distributed.framework", given.framework)


def _program(given: SubmitFlags, spec: Json) -> None:
    args, rest = given.many("args"), list(given.rest or ())
    command = [given.text("command")] if given.text("command") else []
    if given.switch("entrypoint_follows"):
        if not rest:
            raise Invalid("--command: give the program: --command PROGRAM, or --command -- PROGRAM ARGS")
        command, rest = rest[:1], rest[1:]
    _put_all(spec, "command", command)
    _put_all(spec, "args", [*args, *rest])
    if given.switch("attach"):
        spec.update({"stdin": True, "tty": True})
    if given.text("template"):
        spec["template"] = given.text("template")


def _image(given: SubmitFlags, spec: Json) -> None:
    policy = given.text("image_pull_policy")
    if policy:
        arguments = {word.lower(): word for word in ("Always", "IfNotPresent", "Never")}
        spec["imagePullPolicy"] = arguments.get(policy.lower(), policy)
    elif given.switch("local_image"):
        spec["imagePullPolicy"] = "Never"
    elif given.switch("always_pull_image"):
        spec["imagePullPolicy"] = "Always"


def _marks(given: SubmitFlags, spec: Json) -> None:
    _put_all(spec, "environment", [flag_values.variable(each) for each in given.many("environment")])
    for key, spec_path in (("label", "labels"), ("annotation", "annotations")):
        if given.listed(key):
            spec[spec_path] = flag_values.key_values(key, given.listed(key))


def gpu_text(flag: str, text: str) -> str:
    """A number of GPUs as it was typed, if it is one; the rest of the rules are the type's."""
    if not _GPU.fullmatch(text.strip()):
        raise Invalid(f"--{flag}: must be a whole number of GPUs, or a part of one such as 0.5, not {text!r}")
    return text.strip()


def _gpu(given: SubmitFlags, spec: Json) -> None:
    """A whole number beside a part or a memory size says on how many devices that is wanted."""
    whole, part = given.text("gpu"), given.text("gpu_portion_request")
    kind = given.text("gpu_request_type")
    if kind and kind not in ("portion", "memory", "migProfile"):
        raise Invalid(f"--gpu-request-type: must be one of portion, memory, migProfile, not {kind!r}")
    if whole:
        gpu_text("gpu", whole)
    shares = bool(part or given.text("gpu_memory"))
    if whole and shares and whole.isdigit() and int(whole):
        if int(whole) > 1:
            set_path(spec, "compute.gpuDevices", int(whole))
    elif whole:
        set_path(spec, "compute.gpu", whole)
    if part:
        if "gpu" in spec.get("compute", {}):
            raise Invalid("--gpu-portion-request: needs a whole number of devices in --gpu, or none")
        set_path(spec, "compute.gpu", gpu_text("gpu-portion-request", part))
    extended = flag_values.resources("extended-resource", given.listed("extended_resource"))
    _put_all(spec, "compute.extendedResources", extended)


def _storage(given: SubmitFlags, spec: Json) -> None:
    found: Json = {}
    for text in given.listed("volume"):
        place, entry = flag_values.volume(text, given.text("nfs_server"))
        found.setdefault(place, []).append(entry)
    readers: dict[str, tuple[str, Callable[[str], Json]]] = {
        "host_path": ("hostPath", flag_values.host_path),
        "nfs": ("nfs", flag_values.nfs),
        "pvc": ("pvc", flag_values.claim),
        "existing_pvc": ("pvc", flag_values.existing_claim),
        "new_pvc": ("pvc", flag_values.new_claim),
        "git_sync": ("git", flag_values.git),
        "s3": ("s3", flag_values.bucket),
        "configmap_volume": ("configMap", flag_values.config_map),
    }
    for key, (place, reader) in readers.items():
        for text in given.many(key):
            found.setdefault(place, []).append(reader(text))
    if given.switch("mount_propagation"):
        found["mountPropagation"] = "HostToContainer"
    if found:
        spec["storage"] = found


def _network(given: SubmitFlags, spec: Json) -> None:
    found = [port for text in given.many("port") for port in flag_values.ports(text)]
    for text in given.many("service_type"):
        kind, own = flag_values.service(text)
        spec["serviceType"] = kind
        found += own
    _put_all(spec, "ports", found)
    _put_all(spec, "exposedUrls", [flag_values.external_url(text) for text in given.many("external_url")])
    if given.text("serving_port"):
        set_path(spec, "serving.port", flag_values.serving_port(given.text("serving_port")))


def _place(given: SubmitFlags, spec: Json) -> None:
    pools = [pool for text in given.listed("node_pools") for pool in text.split()]
    _put_all(spec, "nodePools", pools)
    _put_all(spec, "tolerations", [flag_values.toleration(text) for text in given.many("toleration")])


def _security(given: SubmitFlags, spec: Json) -> None:
    if given.switch("prevent_privilege_escalation"):
        set_path(spec, "security.allowPrivilegeEscalation", False)
    if given.switch("run_as_user"):
        spec.setdefault("createHomeDir", True)


def _master(given: SubmitFlags, spec: Json) -> None:
    base = "distributed.master"
    if given.text("master_command"):
        set_path(spec, f"{base}.command", [given.text("master_command")])
    _put_all(spec, f"{base}.args", given.many("master_args"))
    variables = [_master_variable(text) for text in given.many("master_environment")]
    _put_all(spec, f"{base}.environment", variables)
    if given.text("master_gpu"):
        set_path(spec, f"{base}.compute.gpu", gpu_text("master-gpu", given.text("master_gpu")))
    extended = flag_values.resources("master-extended-resource", given.listed("master_extended_resource"))
    _put_all(spec, f"{base}.compute.extendedResources", extended)


def _master_variable(text: str) -> Json:
    name, _, value = text.partition("=")
    return {"name": name, "exclude": True} if value == "-" else flag_values.variable(text, "master-environment")


_PARTS = (_type, _program, _image, _marks, _gpu, _storage, _network, _place, _security, _master)


# --- the whole


def workload_document(name: str, namespace: str, spec: Json, annotations: Mapping[str, str]) -> Json:
    """The document to create; `Invalid` in one line that names the flags."""
    try:
        check_name(KINDS.of(Workload), name)
    except Invalid as exc:
        raise Invalid(f"job name: {exc.faults[0].text}") from None
    metadata = {"name": name, "namespace": namespace, "annotations": dict(annotations)}
    try:
        return to_json(decode(Workload, {"metadata": metadata, "spec": spec}, strict=True))
    except Invalid as exc:
        raise name_flags_in(exc) from None


def name_flags_in(error: Invalid) -> Invalid:
    """The same with its faults named by flag, as whoever typed them knows them."""
    text = "; ".join(map(fault_text, error.faults)) or error.message
    return Invalid(text, hint=error.hint, faults=error.faults)


def fault_text(fault: Fault) -> str:
    """`--gpu: must be ...` where a flag is behind the field."""
    flag = flag_of(fault.path.removeprefix("spec."))
    return f"--{flag}: {fault.text}" if flag else str(fault)


_FLAG_OF = {
    "compute": "gpu",
    "compute.gpu": "gpu",
    "compute.gpuDevices": "gpu",
    "imagePullPolicy": "image-pull-policy",
    "template": "template",
    "serviceType": "service-type",
    "ports": "port",
    "environment": "environment",
    "storage.hostPath": "volume",
    "storage.nfs": "volume",
    "storage.pvc": "pvc",
    "storage.git": "git-sync",
    "storage.s3": "s3",
    "storage.configMap": "configmap-volume",
    "tolerations": "toleration",
    "distributed.master.compute.gpu": "master-gpu",
    "serving.port": "serving-port",
}


def flag_of(path: str) -> str:
    """The flag whose value stands at a path; "" where there is none."""
    known = {flag.spec_path: flag.name for flag in (*DISTRIBUTED, *SERVING, *COMMON) if flag.spec_path} | _FLAG_OF
    steps = re.sub(r"\[.*?\]", "", path).split(".")
    for length in range(len(steps), 0, -1):
        found = known.get(".".join(steps[:length]))
        if found:
            return found
    return ""
