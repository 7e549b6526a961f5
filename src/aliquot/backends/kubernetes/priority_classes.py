"""The platform's PriorityClasses. An existing class keeps its value, even if it differs from the platform's."""

from __future__ import annotations

import structlog

from aliquot.api import Json
from aliquot.backends.kubernetes.unstructured_kinds import PRIORITY_CLASS
from aliquot.errors import Exists, NotFound
from aliquot.podspec.requests import PRIORITY_VALUES
from aliquot.store.driver import Document, StoreDriver

_DESCRIPTIONS = {
    "train": "Training: may be stopped for others, and may go beyond quota.",
    "build-preemptible": "Interactive work that may be stopped for others, and may go beyond quota.",
    "interactive-preemptible": "Interactive work that may be stopped for others, and may go beyond quota.",
    "build": "Interactive work: is not stopped for others, and stays within quota.",
    "inference": "Inference: is not stopped for others, and stays within quota.",
}
log = structlog.get_logger()


def priority_classes() -> list[Json]:
    return [_class(name, value) for name, value in PRIORITY_VALUES.items()]


def _class(name: str, value: int) -> Json:
    return {
        "apiVersion": PRIORITY_CLASS.api_version,
        "kind": PRIORITY_CLASS.name,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "aliquot"}},
        "value": value,
        "globalDefault": False,
        "description": _DESCRIPTIONS[name],
    }


async def install_priority_classes(driver: StoreDriver) -> None:
    for wanted in priority_classes():
        name = wanted["metadata"]["name"]
        try:
            existing = (await driver.get(PRIORITY_CLASS, name)).data
        except NotFound:
            try:
                await driver.create(PRIORITY_CLASS, Document(wanted))
            except Exists:  # another replica was faster
                continue
            continue
        if existing.get("value") != wanted["value"]:
            log.warning(
                "priority class exists with another value and keeps it",
                name=name, value=existing.get("value"), default=wanted["value"],
            )  # fmt: skip
