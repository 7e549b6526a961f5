"""Readiness, liveness and startup probes of a workload's pod, as Kubernetes spells them."""

from __future__ import annotations

from typing import Any

from aliquot.api import Json
from aliquot.api.network import Probe, Probes


def probes_of(probes: Probes | None) -> dict[str, Any]:
    """The probe fields of a container; those that are not set are left out."""
    if probes is None:
        return {}
    named = {
        "readiness_probe": probes.readiness,
        "liveness_probe": probes.liveness,
        "startup_probe": probes.startup,
    }
    return {name: _probe(probe) for name, probe in named.items() if probe is not None}


def _probe(probe: Probe) -> Json:
    fields: Json = {
        "initialDelaySeconds": probe.initial_delay_seconds,
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "successThreshold": probe.success_threshold,
        "failureThreshold": probe.failure_threshold,
    }
    if probe.http_get is not None:
        check = probe.http_get
        headers = {"httpHeaders": [{"name": "Host", "value": check.host}]} if check.host else {}
        fields["httpGet"] = {"port": check.port, "path": check.path, "scheme": check.scheme, **headers}
    elif probe.tcp_port is not None:
        fields["tcpSocket"] = {"port": probe.tcp_port}
    elif probe.command:
        fields["exec"] = {"command": list(probe.command)}
    return {key: value for key, value in fields.items() if value is not None}
