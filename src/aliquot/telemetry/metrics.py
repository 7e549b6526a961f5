"""Metrics in Prometheus' text format, with the prefix `aliquot_`, base units, and labels with few values.

Objects are counted at scrape time (`/metrics`). Only requests are counted as they happen.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from aliquot import __version__

# From a cached read to a write on a slow disk. Watches are not timed.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics of one server, in their own registry, so that one process can have several servers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="aliquot", registry=self._registry)
        build = Gauge("aliquot_build_info", "The version that runs.", ["version"], registry=self._registry)
        build.labels(__version__).set(1)
        self._requests = Counter(
            "aliquot_http_requests", "Answered requests.", ["verb", "resource", "code"], registry=self._registry
        )
        self._seconds = Histogram(
            "aliquot_http_request_duration_seconds",
            "Time to answer.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._watchers = Gauge("aliquot_http_watchers", "Open watches.", registry=self._registry)
        self._objects = Gauge("aliquot_objects", "Objects in the store.", ["kind"], registry=self._registry)

    def observe_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._requests.labels(verb, resource, str(code)).inc()
        self._seconds.labels(verb).observe(seconds)

    def add_watchers(self, change: int) -> None:
        self._watchers.inc(change)

    def text(self, objects: Mapping[str, int]) -> bytes:
        for kind, count in objects.items():
            self._objects.labels(kind).set(count)
        return generate_latest(self._registry)
