"""PodDisruptionBudgets: whether one of them forbids to stop a pod now."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from aliquot.api import Json, Pod
from aliquot.backends.kubernetes.unstructured_kinds import DISRUPTION_BUDGET
from aliquot.errors import NotFound, Unavailable
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.informer import Informer
from aliquot.store.selectors import Term

Terms = tuple[Term, ...] | None  # None matches nothing


class DisruptionBudgets:
    def __init__(self, driver: KubernetesDriver) -> None:
        self._driver = driver
        self._budgets: Informer[list[Terms]] = Informer(driver, DISRUPTION_BUDGET, _read)

    def run(self) -> Coroutine[Any, Any, None]:
        return self._budgets.run()

    def covers(self, pod: Pod) -> bool:
        """Whether a budget selects the pod."""
        labels = dict(pod.metadata.labels)
        return any(
            key[0] == pod.metadata.namespace and terms is not None and all(term.matches(labels) for term in terms)
            for key, selectors in self._budgets.items()
            for terms in selectors
        )

    async def eviction_blocker(self, pod: Pod) -> str:
        """Why the pod must not be stopped now; empty if it may. Asks the API server only if a budget covers the pod."""
        if not self.covers(pod):
            return ""
        meta = pod.metadata
        try:
            await self._driver.evict(meta.name, meta.namespace, uid=meta.uid, dry_run=True)
        except Unavailable as exc:
            return reason_of(exc)
        except NotFound:
            return ""
        return ""


def reason_of(exc: Unavailable) -> str:
    """The API server's reason, with the budget's name and numbers if it gives them."""
    return "; ".join(fault.text for fault in exc.faults) or exc.message


def _read(document: Document) -> list[Terms]:
    return [terms_of((document.data.get("spec") or {}).get("selector"))]


def terms_of(selector: Json | None) -> Terms:
    """The terms of a LabelSelector. An empty selector matches every pod; a missing one matches none."""
    return None if selector is None else tuple(_terms(selector))


def _terms(selector: Json) -> Iterator[Term]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield Term(key, frozenset([value]))
    for expression in selector.get("matchExpressions") or ():
        values = frozenset(expression.get("values") or ())
        match expression.get("operator"):
            case "In":
                yield Term(expression["key"], values)
            case "NotIn":
                yield Term(expression["key"], values, negated=True)
            case "Exists":
                yield Term(expression["key"], None)
            case "DoesNotExist":
                yield Term(expression["key"], None, negated=True)
