"""Fuzzing: valid and invalid requests get responses that the OpenAPI document describes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import checks
from schemathesis.core.result import Ok

from aliquot.api import KINDS
from api.http_client import Api, named
from api.samples import path_of, sample
from support.stores.process import ServerProcess

Operation = schemathesis.APIOperation[Any, Any, Any, Any]
SECONDS = 60.0
EXAMPLES = 4  # of each operation and mode: about 1200 requests
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],  # shrinking a failure takes minutes
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server for this test only, because many requests succeed."""
    running = ServerProcess(tmp_path / "data", "--api-only").start()
    yield running
    running.stop()


def test_fuzz(fuzzed: ServerProcess) -> None:
    """No request crashes the server, and every response is as described."""
    api = Api(fuzzed.url, fuzzed.token)
    api.post("namespaces", named("there")).ok(201)
    for kind in KINDS:
        api.post(path_of(kind, "namespaces/there"), sample(kind, "namespaces/there", "there"))
    document = api.get("/openapi.json").ok()
    api.close()
    results = list(schemathesis.openapi.from_dict(document).get_all_operations())
    operations = [result.ok() for result in results if isinstance(result, Ok)]
    assert len(operations) == len(results)
    random.Random(3).shuffle(operations)
    deadline = time.monotonic() + SECONDS
    sent = 0
    for operation in operations:
        for mode in MODES:
            if time.monotonic() < deadline:
                sent += _fuzz(operation, mode, fuzzed)
    print(f"\n{sent} requests to {len(operations)} operations")
    assert sent > len(operations)
    assert "Traceback" not in fuzzed.log
    assert fuzzed.ready()


def _fuzz(operation: Operation, mode: schemathesis.GenerationMode, server: ServerProcess) -> int:
    sent = 0

    @SETTINGS
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case[Operation]) -> None:
        nonlocal sent
        sent += 1
        case.query.pop("watch", None)  # a stream has no end
        if mode is schemathesis.GenerationMode.POSITIVE and operation.method.upper() != "DELETE":
            # Random names match no object, so use the names of objects that exist.
            case.path_parameters.update(dict.fromkeys(case.path_parameters, "there"))
        headers = {"Authorization": f"Bearer {server.token}"}
        response = case.call(base_url=server.url, headers=headers, timeout=30)
        case.validate_response(response, checks=CHECKS)

    try:
        send()
    except hypothesis.errors.Unsatisfiable:
        return 0  # no invalid request exists, such as for a list without parameters
    return sent
