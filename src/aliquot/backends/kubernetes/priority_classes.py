"""The PriorityClasses of the platform. One that is there with another value was somebody's decision, and stays."""

from __future__ import annotations

import structlog

from aliquot.api import Json
from aliquot.backends.kubernetes.unstructured_kinds import PRIORITY_CLASS
from aliquot.errors import Exists, NotFound
from aliquot.podspec.requests import PRIORITY_VALUES
from aliquot.store.driver import Document, StoreDriver

_WORDS = {
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
        "description": _WORDS[name],
    }


async def install_priority_classes(driver: StoreDriver) -> None:
    for wanted in priority_classes():
        name = wanted["metadata"]["name"]
        try:
            there = (await driver.get(PRIORITY_CLASS, name)).data
        except NotFound:
            try:
                await driver.create(PRIORITY_CLASS, Document(wanted))
            except Exists:  # another replica was faster
                continue
            continue
        if there.get("value") != wanted["value"]:
            log.warning(
                "priority class has another value than ours, and keeps it",
                name=name, value=there.get("value"), ours=wanted["value"],
            )  # fmt: skip
