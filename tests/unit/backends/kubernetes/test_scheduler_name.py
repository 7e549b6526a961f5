"""Namespaces in which every pod gets the name of this scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.backends.kubernetes.scheduler_name import scheduler_name_patch

ENFORCED = {"metadata": {"annotations": {"runai/enforce-scheduler-name": "true"}}}
PATCH = [{"op": "add", "path": "/spec/schedulerName", "value": "aliquot"}]


@pytest.mark.parametrize(
    ("pod", "namespace", "patch"),
    [
        ({"spec": {}}, ENFORCED, PATCH),
        ({"spec": {"schedulerName": "default-scheduler"}}, ENFORCED, PATCH),
        ({"spec": {"schedulerName": "theirs"}}, ENFORCED, PATCH),
        ({"spec": {"schedulerName": "runai-scheduler"}}, ENFORCED, []),
        ({"spec": {"nodeName": "n1"}}, ENFORCED, []),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {}}, ENFORCED, []),
        ({"spec": {}}, {"metadata": {}}, []),
        ({"spec": {}}, {"metadata": {"annotations": {"runai/enforce-scheduler-name": "false"}}}, []),
    ],
)
def test_scheduler_name_is_enforced(
    pod: dict[str, Any], namespace: dict[str, Any], patch: list[dict[str, Any]]
) -> None:
    """A pod is changed if its namespace enforces the name, unless it has the name already, is bound, or is static."""
    assert scheduler_name_patch(pod, namespace) == patch
