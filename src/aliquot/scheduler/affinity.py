"""What a pod says about its node and its neighbours, in the scheduler's terms.

    node affinity       its required terms: alternatives of expressions over node labels and the node's name
    pod affinity        one rule: where pods with these labels are, by the value of a node label
    pod anti-affinity   one rule: where none of them are

Wishes (`preferred...`, `ScheduleAnyway`) are not read: the scheduler has its own order of nodes. What must hold and
cannot be said is a *hindrance*: a sentence, and the pod waits with it, instead of running where it must not.

Rules about neighbours compare labels of jobs, and those that no rule asks for are left out: jobs that differ in
nothing else are then decided about together (`watched_keys`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot import labels
from aliquot.api import Pod
from aliquot.planner import NodeSelectorRequirement, NodeSelectorTerms, PodAffinityTerm

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
# Stands among a job's labels for the namespace it is in; the name is one that Kubernetes keeps for namespaces.
NAMESPACE = "kubernetes.io/metadata.name"
# Besides GPUs these are counted, or never run out in practice; of anything else a node may have too little.
_COUNTED = ("cpu", "memory", "ephemeral-storage", labels.GPU_RESOURCE)


class UnsupportedConstraint(Exception):
    """Something that must hold and that the scheduler has no words for."""


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """What one pod wants of its node and of those around it."""

    node: tuple[NodeSelectorTerms, ...] = ()
    near: PodAffinityTerm | None = None
    apart: PodAffinityTerm | None = None
    hindrance: str = ""


NO_CONSTRAINTS = PodConstraints()


def constraints_of(pod: Pod) -> PodConstraints:
    spec = pod.spec
    if not spec.affinity and not spec.topology_spread_constraints and not _is_special(pod):
        return NO_CONSTRAINTS  # nearly always
    affinity = spec.affinity or {}
    try:
        _check_resources(pod)
        for constraint in spec.topology_spread_constraints:
            if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule":
                raise UnsupportedConstraint(
                    "topologySpreadConstraints with DoNotSchedule; write ScheduleAnyway, or anti-affinity"
                )
        node = _required(affinity.get("nodeAffinity"))
        return PodConstraints(
            node=(node_alternatives(node),) if node else (),
            near=_neighbours(pod, "podAffinity"),
            apart=_neighbours(pod, "podAntiAffinity"),
        )
    except UnsupportedConstraint as exc:
        return PodConstraints(hindrance=f"pod {pod.metadata.name} asks for what this scheduler cannot give: {exc}")


def node_alternatives(selector: Mapping[str, Any]) -> NodeSelectorTerms:
    """Of a node selector (of a pod, or of a volume). One without terms matches nothing, and so does an empty term."""
    return tuple(_term(term) for term in selector.get("nodeSelectorTerms") or ())


def _term(term: Mapping[str, Any]) -> tuple[NodeSelectorRequirement, ...]:
    said = [_expression(one, str(one.get("key", ""))) for one in term.get("matchExpressions") or ()]
    said += [_expression(one, "") for one in term.get("matchFields") or ()]  # metadata.name is the only one there is
    return tuple(said) or (NodeSelectorRequirement("", "In"),)


def _expression(one: Mapping[str, Any], key: str) -> NodeSelectorRequirement:
    operator = str(one.get("operator", ""))
    if operator not in _OPERATORS:
        raise UnsupportedConstraint(f"operator {operator!r} in node affinity")
    return NodeSelectorRequirement(key, operator, tuple(map(str, one.get("values") or ())))


def _required(part: Any) -> Any:
    return (part or {}).get("requiredDuringSchedulingIgnoredDuringExecution")


def _neighbours(pod: Pod, word: str) -> PodAffinityTerm | None:
    terms: list[Mapping[str, Any]] = _required((pod.spec.affinity or {}).get(word)) or []
    if not terms:
        return None
    if len(terms) > 1:
        raise UnsupportedConstraint(f"more than one required term in {word}")
    term = terms[0]
    if term.get("labelSelector") is None:
        raise UnsupportedConstraint(f"{word} without a labelSelector")
    found = dict(_place(pod, term, word))
    selector = term["labelSelector"]
    found |= selector.get("matchLabels") or {}
    for one in selector.get("matchExpressions") or ():
        values = list(one.get("values") or [])
        if one.get("operator") != "In" or len(values) != 1:
            raise UnsupportedConstraint(f"{word} that selects pods by anything else than labels with one value")
        found[one["key"]] = values[0]
    return PodAffinityTerm(tuple(sorted(found.items())), str(term.get("topologyKey", "")))


def _place(pod: Pod, term: Mapping[str, Any], word: str) -> Mapping[str, str]:
    """Where the neighbours are: in the pod's own namespace, in one other, or in all of them."""
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    if selector is not None and (selector or names):
        raise UnsupportedConstraint(f"{word} that selects namespaces by labels")
    if len(names) > 1:
        raise UnsupportedConstraint(f"{word} over several namespaces")
    if selector is not None:
        return {}
    return {NAMESPACE: names[0] if names else pod.metadata.namespace}


def _is_special(pod: Pod) -> bool:
    spec = pod.spec
    return bool(spec.resource_claims) or any(name not in _COUNTED for name in _resources(pod))


def _resources(pod: Pod) -> Iterator[str]:
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        yield from container.resources.limits
        yield from container.resources.requests


def _check_resources(pod: Pod) -> None:
    if pod.spec.resource_claims:
        raise UnsupportedConstraint(f"devices by resourceClaims; write {labels.GPU_RESOURCE} in limits instead")
    for name in _resources(pod):
        if name not in _COUNTED:
            raise UnsupportedConstraint(f"resource {name}, of which it does not know how much each node has")


# --- of the pods of one job


def affinity_label_keys(wanted: PodConstraints) -> frozenset[str]:
    """Labels of jobs that its rules ask for."""
    return frozenset(key for rule in (wanted.near, wanted.apart) if rule for key, _ in rule.labels)


def affinity_labels(pods: Sequence[Pod], watched: frozenset[str]) -> Mapping[str, str]:
    """The labels of a job that somebody's rule asks for: those that all its pods have."""
    if not watched:
        return {}
    first, *others = pods
    mine = {**first.metadata.labels, NAMESPACE: first.metadata.namespace}
    return {
        key: mine[key]
        for key in sorted(watched)
        if key in mine and all(key == NAMESPACE or one.metadata.labels.get(key) == mine[key] for one in others)
    }


def job_constraints(wanted: Iterable[PodConstraints]) -> PodConstraints:
    """Of all pods of a job: the scheduler has one rule of each sort for a job."""
    found = list(dict.fromkeys(wanted))
    hindrance = next((one.hindrance for one in found if one.hindrance), "")
    rules = {(one.near, one.apart) for one in found}
    if not hindrance and len(rules) > 1:
        hindrance = "its pods have different rules about pods near them, and this scheduler can give only one to a job"
    if hindrance:
        return PodConstraints(hindrance=hindrance)
    near, apart = next(iter(rules), (None, None))
    return PodConstraints(near=near, apart=apart)
