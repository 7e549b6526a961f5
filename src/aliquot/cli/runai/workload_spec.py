"""Turns the flags of `submit` into a workload. Validation errors name the flag instead of the field."""

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
    """The flags of one submission: values by key, and the arguments after `--` (None: there is no `--`)."""

    values: Mapping[str, Any]
    trailing: Sequence[str] | None = None
    # Keys of the switches that were given as `--flag=false`.
    disabled: frozenset[str] = frozenset()
    framework: str = ""
    definitions: tuple[Flag, ...] = field(default=(*COMMON, *SERVING))

    def text(self, key: str) -> str:
        return self.values.get(key) or ""

    def many(self, key: str) -> list[str]:
        return list(self.values.get(key) or ())

    def listed(self, key: str) -> list[str]:
        """The values of a flag that may be repeated or have several values with commas."""
        return [part.strip() for each in self.many(key) for part in each.split(",") if part.strip()]

    def switch(self, key: str) -> bool | None:
        """Whether a switch is on; None when it is not given."""
        return False if key in self.disabled else True if self.values.get(key) else None


def spec_from_flags(flags: SubmitFlags) -> Json:
    """The spec as JSON, with only the fields that the flags set. It is not validated."""
    spec: Json = {}
    for flag in flags.definitions:
        value = _value(flags, flag)
        if flag.spec_path and value is not None:
            set_path(spec, flag.spec_path, value)
    for set_fields in _SPEC_SECTIONS:
        set_fields(flags, spec)
    return spec


def _value(flags: SubmitFlags, flag: Flag) -> Any:
    match flag.value_type:
        case "switch":
            return flags.switch(flag.key)
        case "list":
            return flags.listed(flag.key) or None
        case "many":
            return flags.many(flag.key) or None
        case _:
            return flags.values.get(flag.key)


def set_path(spec: Json, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        spec = spec.setdefault(name, {})
    spec[last] = value


def _set_list(spec: Json, path: str, values: Sequence[Any]) -> None:
    if values:
        set_path(spec, path, list(values))


# --- flags that set several fields, or whose value has a syntax of its own


def _type(flags: SubmitFlags, spec: Json) -> None:
    interactive = flags.switch("interactive") or flags.switch("jupyter")
    if interactive and flags.switch("inference"):
        raise Invalid("--inference and --interactive: give one of them")
    spec["type"] = "inference" if flags.switch("inference") else "interactive" if interactive else "training"
    serving_flags = [
        f"--{flag.name}" for flag in flags.definitions if flag.spec_path.startswith("serving.") and _value(flags, flag)
    ]
    if serving_flags and spec["type"] != "inference":
        raise Invalid(f"{serving_flags[0]}: needs --inference")
    if flags.switch("jupyter"):
        spec["jupyter"] = True
    if flags.framework:
        set_path(spec, "distributed.framework", flags.framework)


def _program(flags: SubmitFlags, spec: Json) -> None:
    args, trailing = flags.many("args"), list(flags.trailing or ())
    command = [flags.text("command")] if flags.text("command") else []
    if flags.switch("entrypoint_follows"):
        if not trailing:
            raise Invalid("--command: give the program: --command PROGRAM, or --command -- PROGRAM ARGS")
        command, trailing = trailing[:1], trailing[1:]
    _set_list(spec, "command", command)
    _set_list(spec, "args", [*args, *trailing])
    if flags.switch("attach"):
        spec.update({"stdin": True, "tty": True})
    if flags.text("template"):
        spec["template"] = flags.text("template")


def _image(flags: SubmitFlags, spec: Json) -> None:
    policy = flags.text("image_pull_policy")
    if policy:
        policies = {name.lower(): name for name in ("Always", "IfNotPresent", "Never")}
        spec["imagePullPolicy"] = policies.get(policy.lower(), policy)
    elif flags.switch("local_image"):
        spec["imagePullPolicy"] = "Never"
    elif flags.switch("always_pull_image"):
        spec["imagePullPolicy"] = "Always"


def _environment_and_labels(flags: SubmitFlags, spec: Json) -> None:
    _set_list(spec, "environment", [flag_values.variable(text) for text in flags.many("environment")])
    for key, field_name in (("label", "labels"), ("annotation", "annotations")):
        if flags.listed(key):
            spec[field_name] = flag_values.key_values(key, flags.listed(key))


def gpu_text(flag: str, text: str) -> str:
    """The text of a number of GPUs; `Invalid` when it is no number. The workload type checks the other rules."""
    if not _GPU.fullmatch(text.strip()):
        raise Invalid(f"--{flag}: must be a whole number of GPUs, or a part of one such as 0.5, not {text!r}")
    return text.strip()


def _gpu(flags: SubmitFlags, spec: Json) -> None:
    """Set the GPU request. With a portion or a memory size, a whole number in --gpu is the number of devices."""
    whole, portion = flags.text("gpu"), flags.text("gpu_portion_request")
    request_type = flags.text("gpu_request_type")
    if request_type and request_type not in ("portion", "memory", "migProfile"):
        raise Invalid(f"--gpu-request-type: must be one of portion, memory, migProfile, not {request_type!r}")
    if whole:
        gpu_text("gpu", whole)
    is_shared = bool(portion or flags.text("gpu_memory"))
    if whole and is_shared and whole.isdigit() and int(whole):
        if int(whole) > 1:
            set_path(spec, "compute.gpuDevices", int(whole))
    elif whole:
        set_path(spec, "compute.gpu", whole)
    if portion:
        if "gpu" in spec.get("compute", {}):
            raise Invalid("--gpu-portion-request: needs a whole number of devices in --gpu, or none")
        set_path(spec, "compute.gpu", gpu_text("gpu-portion-request", portion))
    extended = flag_values.resources("extended-resource", flags.listed("extended_resource"))
    _set_list(spec, "compute.extendedResources", extended)


def _storage(flags: SubmitFlags, spec: Json) -> None:
    storage: Json = {}
    for text in flags.listed("volume"):
        field_name, entry = flag_values.volume(text, flags.text("nfs_server"))
        storage.setdefault(field_name, []).append(entry)
    parsers: dict[str, tuple[str, Callable[[str], Json]]] = {
        "host_path": ("hostPath", flag_values.host_path),
        "nfs": ("nfs", flag_values.nfs),
        "pvc": ("pvc", flag_values.claim),
        "existing_pvc": ("pvc", flag_values.existing_claim),
        "new_pvc": ("pvc", flag_values.new_claim),
        "git_sync": ("git", flag_values.git),
        "s3": ("s3", flag_values.bucket),
        "configmap_volume": ("configMap", flag_values.config_map),
    }
    for key, (field_name, parse) in parsers.items():
        for text in flags.many(key):
            storage.setdefault(field_name, []).append(parse(text))
    if flags.switch("mount_propagation"):
        storage["mountPropagation"] = "HostToContainer"
    if storage:
        spec["storage"] = storage


def _network(flags: SubmitFlags, spec: Json) -> None:
    ports = [port for text in flags.many("port") for port in flag_values.ports(text)]
    for text in flags.many("service_type"):
        service_type, service_ports = flag_values.service(text)
        spec["serviceType"] = service_type
        ports += service_ports
    _set_list(spec, "ports", ports)
    _set_list(spec, "exposedUrls", [flag_values.external_url(text) for text in flags.many("external_url")])
    if flags.text("serving_port"):
        set_path(spec, "serving.port", flag_values.serving_port(flags.text("serving_port")))


def _node_selection(flags: SubmitFlags, spec: Json) -> None:
    pools = [pool for text in flags.listed("node_pools") for pool in text.split()]
    _set_list(spec, "nodePools", pools)
    _set_list(spec, "tolerations", [flag_values.toleration(text) for text in flags.many("toleration")])


def _security(flags: SubmitFlags, spec: Json) -> None:
    if flags.switch("prevent_privilege_escalation"):
        set_path(spec, "security.allowPrivilegeEscalation", False)
    if flags.switch("run_as_user"):
        spec.setdefault("createHomeDir", True)


def _master(flags: SubmitFlags, spec: Json) -> None:
    base = "distributed.master"
    if flags.text("master_command"):
        set_path(spec, f"{base}.command", [flags.text("master_command")])
    _set_list(spec, f"{base}.args", flags.many("master_args"))
    variables = [_master_variable(text) for text in flags.many("master_environment")]
    _set_list(spec, f"{base}.environment", variables)
    if flags.text("master_gpu"):
        set_path(spec, f"{base}.compute.gpu", gpu_text("master-gpu", flags.text("master_gpu")))
    extended = flag_values.resources("master-extended-resource", flags.listed("master_extended_resource"))
    _set_list(spec, f"{base}.compute.extendedResources", extended)


def _master_variable(text: str) -> Json:
    name, _, value = text.partition("=")
    return {"name": name, "exclude": True} if value == "-" else flag_values.variable(text, "master-environment")


_SPEC_SECTIONS = (
    _type,
    _program,
    _image,
    _environment_and_labels,
    _gpu,
    _storage,
    _network,
    _node_selection,
    _security,
    _master,
)


# --- validation


def workload_document(name: str, namespace: str, spec: Json, annotations: Mapping[str, str]) -> Json:
    """The validated workload to create; `Invalid` names the flags in one line."""
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
    """The same error with the names of flags in place of field paths."""
    text = "; ".join(map(fault_text, error.faults)) or error.message
    return Invalid(text, hint=error.hint, faults=error.faults)


def fault_text(fault: Fault) -> str:
    """`--gpu: must be ...` where a flag sets the field."""
    flag = flag_of(fault.path.removeprefix("spec."))
    return f"--{flag}: {fault.text}" if flag else str(fault)


_FLAG_BY_PATH = {
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
    """The flag that sets the field at a path; "" where there is none."""
    flags = {flag.spec_path: flag.name for flag in (*DISTRIBUTED, *SERVING, *COMMON) if flag.spec_path} | _FLAG_BY_PATH
    steps = re.sub(r"\[.*?\]", "", path).split(".")
    for length in range(len(steps), 0, -1):
        if flag := flags.get(".".join(steps[:length])):
            return flag
    return ""
