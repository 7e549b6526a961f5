"""Any request that the description of the API allows, and many that it does not, gets an answer that it describes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import schemathesis
from schemathesis import checks

from aliquot.api import KINDS
from api.samples import path_of, sample
from api.wire import Api, named
from support.stores.process import ServerProcess

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
    phases=[hypothesis.Phase.generate],  # the first failure says enough; making it smaller takes minutes
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own: what is sent here may well succeed."""
    running = ServerProcess(tmp_path / "data", "--api-only").start()
    yield running
    running.stop()


def test_fuzz(fuzzed: ServerProcess) -> None:
    """No request brings the server down, and every answer is one that was announced."""
    api = Api(fuzzed.url, fuzzed.token)
    api.post("namespaces", named("there")).ok(201)
    for kind in KINDS:
        api.post(path_of(kind, "namespaces/there"), sample(kind, "namespaces/there", "there"))
    described = api.get("/openapi.json").ok()
    api.close()
    operations = [found.ok() for found in schemathesis.openapi.from_dict(described).get_all_operations()]
    random.Random(3).shuffle(operations)
    until = time.monotonic() + SECONDS
    asked = 0
    for operation in operations:
        for mode in MODES:
            if time.monotonic() < until:
                asked += _fuzz(operation, mode, fuzzed)
    print(f"\n{asked} requests to {len(operations)} operations")
    assert asked > len(operations)
    assert "Traceback" not in fuzzed.log
    assert fuzzed.ready()


def _fuzz(operation: schemathesis.APIOperation, mode: schemathesis.GenerationMode, server: ServerProcess) -> int:
    asked = 0

    @SETTINGS
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        nonlocal asked
        asked += 1
        case.query.pop("watch", None)  # a stream has no end
        if mode is schemathesis.GenerationMode.POSITIVE and operation.method.upper() != "DELETE":
            # Names out of the air are those of nothing; here they are those of what is there.
            case.path_parameters.update(dict.fromkeys(case.path_parameters, "there"))
        headers = {"Authorization": f"Bearer {server.token}"}
        response = case.call(base_url=server.url, headers=headers, timeout=30)
        case.validate_response(response, checks=CHECKS)

    try:
        ask()
    except hypothesis.errors.Unsatisfiable:
        return 0  # nothing wrong can be said here: a list without parameters, say
    return asked
