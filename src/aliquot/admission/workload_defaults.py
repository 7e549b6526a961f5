"""Merging a workload's spec with values from templates and policies.

Values that the submission gives win. Objects merge field by field. Lists whose items have a name, a port or a path
merge by it, and an item with `exclude: true` removes the item of that name. Every other list is one value.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from aliquot.api import Json

JUPYTER_IMAGE = "jupyter/base-notebook"
# The identity of a list item is the first of these fields that it has.
_ITEM_KEYS = ("container", "resource", "mountPath", "path", "name", "key")
_GPU_REQUESTS = ("gpu", "gpuMemory", "migProfile")  # a workload has at most one of them
_GPU_REQUEST_FIELDS = (*_GPU_REQUESTS, "gpuLimit", "gpuMemoryLimit", "gpuDevices", "mps")
_MISSING = object()


def with_defaults(spec: Json, defaults: Json) -> Json:
    """The spec, with fields that it does not have from `defaults`."""
    merged: Json = merge(_without_other_gpu_request(spec, defaults), spec)
    return merged


def _without_other_gpu_request(spec: Json, defaults: Json) -> Json:
    """A spec that asks for GPU memory does not also get a template's number of GPUs."""
    compute, default_compute = spec.get("compute"), defaults.get("compute")
    if not isinstance(compute, dict) or not isinstance(default_compute, dict):
        return defaults
    requests = [field for field in _GPU_REQUESTS if field in compute]
    if not requests or requests[0] in default_compute:
        return defaults
    rest = {key: value for key, value in default_compute.items() if key not in _GPU_REQUEST_FIELDS}
    return {**defaults, "compute": rest}


def merge(base: Any, override: Any) -> Any:
    """Both values merged; `override` wins where they differ."""
    if isinstance(override, dict) and isinstance(base, dict):
        common = {key: merge(base[key], override[key]) for key in base.keys() & override.keys()}
        # As in a JSON merge patch, null removes the field.
        return {key: value for key, value in {**base, **override, **common}.items() if value is not None}
    if _is_list_of_objects(override) and _is_list_of_objects(base):
        overridden = {item_key(item) for item in override}
        kept = [item for item in base if item_key(item) not in overridden]
        excluded = {item_key(item) for item in override if item.get("exclude") is True and _contains(base, item)}
        return [*kept, *(item for item in override if item_key(item) not in excluded)]
    return override


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def item_key(item: Any) -> str:
    """What identifies an item of a list: its name, port or path, or else its whole value."""
    if not isinstance(item, dict):
        return str(item)
    return next((str(item[key]) for key in _ITEM_KEYS if item.get(key)), json.dumps(item, sort_keys=True))


def _contains(items: Sequence[Json], item: Json) -> bool:
    return item_key(item) in map(item_key, items)


def jupyter_defaults() -> Json:
    """Defaults for `jupyter: true`: image, command, port, and a new token."""
    return {
        "image": JUPYTER_IMAGE,
        "command": ["start-notebook.sh"],
        "ports": [{"container": 8888}],
        "serviceType": "portforward",
        "environment": [{"name": "JUPYTER_TOKEN", "value": secrets.token_hex(16)}],
    }


def changed_paths(before: Any, after: Any, path: str = "") -> list[str]:
    """Paths of fields in `after` whose value differs from `before`."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            changed
            for key in after
            for changed in changed_paths(before.get(key, _MISSING), after[key], f"{path}.{key}".removeprefix("."))
        ]
    if before is _MISSING and isinstance(after, dict):
        return changed_paths({}, after, path)
    return [] if before == after else [path]
