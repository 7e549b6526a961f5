"""Disruption budgets: how many pods of an application must stay up. Their rule is Kubernetes', and not ours to bend."""

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

Terms = tuple[Term, ...] | None  # None: selects nothing


class DisruptionBudgets:
    def __init__(self, driver: KubernetesDriver) -> None:
        self._driver = driver
        self._budgets: Informer[list[Terms]] = Informer(driver, DISRUPTION_BUDGET, _read)

    def run(self) -> Coroutine[Any, Any, None]:
        return self._budgets.run()

    def covers(self, pod: Pod) -> bool:
        """Whether some budget is about the pod."""
        marks = dict(pod.metadata.labels)
        return any(
            key[0] == pod.metadata.namespace and terms is not None and all(term.matches(marks) for term in terms)
            for key, found in self._budgets.items()
            for terms in found
        )

    async def eviction_blocker(self, pod: Pod) -> str:
        """Why the pod must not be stopped now; empty when it may. The cluster is asked where a budget covers it."""
        if not self.covers(pod):
            return ""
        place = pod.metadata
        try:
            await self._driver.evict(place.name, place.namespace, uid=place.uid, dry_run=True)
        except Unavailable as exc:
            return reason_of(exc)
        except NotFound:
            return ""
        return ""


def reason_of(exc: Unavailable) -> str:
    """The cluster's words, with the budget's name and numbers where it gives them."""
    return "; ".join(fault.text for fault in exc.faults) or exc.message


def _read(document: Document) -> list[Terms]:
    return [terms_of((document.data.get("spec") or {}).get("selector"))]


def terms_of(selector: Json | None) -> Terms:
    """A label selector as Kubernetes writes it in objects; an empty one selects everything, none nothing."""
    return None if selector is None else tuple(_terms(selector))


def _terms(selector: Json) -> Iterator[Term]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield Term(key, frozenset([value]))
    for one in selector.get("matchExpressions") or ():
        values = frozenset(one.get("values") or ())
        match one.get("operator"):
            case "In":
                yield Term(one["key"], values)
            case "NotIn":
                yield Term(one["key"], values, negated=True)
            case "Exists":
                yield Term(one["key"], None)
            case "DoesNotExist":
                yield Term(one["key"], None, negated=True)
