"""Namespaces in which every pod is placed by us."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.backends.kubernetes.scheduler_name import scheduler_name_patch

MARKED = {"metadata": {"annotations": {"runai/enforce-scheduler-name": "true"}}}
PATCH = [{"op": "add", "path": "/spec/schedulerName", "value": "aliquot"}]


@pytest.mark.parametrize(
    ("pod", "namespace", "patch"),
    [
        ({"spec": {}}, MARKED, PATCH),
        ({"spec": {"schedulerName": "default-scheduler"}}, MARKED, PATCH),
        ({"spec": {"schedulerName": "theirs"}}, MARKED, PATCH),
        ({"spec": {"schedulerName": "runai-scheduler"}}, MARKED, []),
        ({"spec": {"nodeName": "n1"}}, MARKED, []),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {}}, MARKED, []),
        ({"spec": {}}, {"metadata": {}}, []),
        ({"spec": {}}, {"metadata": {"annotations": {"runai/enforce-scheduler-name": "false"}}}, []),
    ],
)
def test_scheduler_is_forced(pod: dict[str, Any], namespace: dict[str, Any], patch: list[dict[str, Any]]) -> None:
    """Where the namespace says so, and the pod is not ours or placed already."""
    assert scheduler_name_patch(pod, namespace) == patch
