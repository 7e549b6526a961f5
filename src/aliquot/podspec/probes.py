"""How a pod is asked whether it is well, in Kubernetes' own shape."""

from __future__ import annotations

from typing import Any

from aliquot.api import Json
from aliquot.api.network import Probe, Probes


def probes_of(probes: Probes | None) -> dict[str, Any]:
    """Fields of a container."""
    if probes is None:
        return {}
    named = {
        "readiness_probe": probes.readiness,
        "liveness_probe": probes.liveness,
        "startup_probe": probes.startup,
    }
    return {name: _probe(one) for name, one in named.items() if one is not None}


def _probe(probe: Probe) -> Json:
    said: Json = {
        "initialDelaySeconds": probe.initial_delay_seconds,
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "successThreshold": probe.success_threshold,
        "failureThreshold": probe.failure_threshold,
    }
    if probe.http_get is not None:
        check = probe.http_get
        headers = {"httpHeaders": [{"name": "Host", "value": check.host}]} if check.host else {}
        said["httpGet"] = {"port": check.port, "path": check.path, "scheme": check.scheme, **headers}
    elif probe.tcp_port is not None:
        said["tcpSocket"] = {"port": probe.tcp_port}
    elif probe.command:
        said["exec"] = {"command": list(probe.command)}
    return {key: value for key, value in said.items() if value is not None}
