"""A pod's constraints on its node and on nearby pods, translated for the planner.

    node affinity       the required terms: alternatives of requirements on node labels and the node's name
    pod affinity        one term: in the same topology domain as pods with these labels
    pod anti-affinity   one term: in a domain without such pods

Preferences (`preferred...`, `ScheduleAnyway`) are ignored: the planner scores nodes in its own way. A requirement that
the planner cannot express becomes a *hindrance*: the pod waits with that sentence as its reason, instead of running
where it must not.

Affinity terms compare labels of jobs. Labels that no term selects by are left out, so that the planner can handle jobs
that differ in nothing else together (`affinity_label_keys`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot import labels
from aliquot.api import Pod
from aliquot.planner import NodeSelectorRequirement, NodeSelectorTerms, PodAffinityTerm

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
# Among a job's labels this one stands for its namespace. Kubernetes reserves the key for namespaces.
NAMESPACE = "kubernetes.io/metadata.name"
# The planner counts these, or nodes never run out of them in practice. A node may lack any other resource.
_KNOWN_RESOURCES = ("cpu", "memory", "ephemeral-storage", labels.GPU_RESOURCE)


class UnsupportedConstraint(Exception):
    """A requirement that the planner cannot express."""


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """What a pod requires of its node and of nearby pods."""

    node: tuple[NodeSelectorTerms, ...] = ()  # each of them holds
    pod_affinity: PodAffinityTerm | None = None
    pod_anti_affinity: PodAffinityTerm | None = None
    hindrance: str = ""  # why no node can satisfy the pod


NO_CONSTRAINTS = PodConstraints()


# --- one pod


def constraints_of(pod: Pod) -> PodConstraints:
    spec = pod.spec
    if not spec.affinity and not spec.topology_spread_constraints and not _asks_for_unknown_resources(pod):
        return NO_CONSTRAINTS  # nearly every pod
    affinity = spec.affinity or {}
    try:
        _check_resources(pod)
        for constraint in spec.topology_spread_constraints:
            if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule":
                raise UnsupportedConstraint(
                    "topologySpreadConstraints with DoNotSchedule; write ScheduleAnyway, or anti-affinity"
                )
        node_selector = _required(affinity.get("nodeAffinity"))
        return PodConstraints(
            node=(node_alternatives(node_selector),) if node_selector else (),
            pod_affinity=_pod_affinity_term(pod, "podAffinity"),
            pod_anti_affinity=_pod_affinity_term(pod, "podAntiAffinity"),
        )
    except UnsupportedConstraint as exc:
        return PodConstraints(hindrance=f"pod {pod.metadata.name} asks for what this scheduler cannot give: {exc}")


def node_alternatives(selector: Mapping[str, Any]) -> NodeSelectorTerms:
    """The terms of the node selector of a pod or a volume. A selector without terms matches no node, and neither does
    an empty term."""
    return tuple(map(_node_selector_term, selector.get("nodeSelectorTerms") or ()))


def _node_selector_term(term: Mapping[str, Any]) -> tuple[NodeSelectorRequirement, ...]:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    requirements = [_requirement(expression, str(expression.get("key", ""))) for expression in expressions]
    requirements += [_requirement(field, "") for field in fields]  # Kubernetes allows no field but metadata.name
    return tuple(requirements) or (NodeSelectorRequirement("", "In"),)


def _requirement(expression: Mapping[str, Any], key: str) -> NodeSelectorRequirement:
    operator = str(expression.get("operator", ""))
    if operator not in _OPERATORS:
        raise UnsupportedConstraint(f"operator {operator!r} in node affinity")
    return NodeSelectorRequirement(key, operator, tuple(map(str, expression.get("values") or ())))


def _required(affinity: Any) -> Any:
    return (affinity or {}).get("requiredDuringSchedulingIgnoredDuringExecution")


def _pod_affinity_term(pod: Pod, field: str) -> PodAffinityTerm | None:
    """`field`: podAffinity or podAntiAffinity."""
    terms: list[Mapping[str, Any]] = _required((pod.spec.affinity or {}).get(field)) or []
    if not terms:
        return None
    if len(terms) > 1:
        raise UnsupportedConstraint(f"more than one required term in {field}")
    term = terms[0]
    if term.get("labelSelector") is None:
        raise UnsupportedConstraint(f"{field} without a labelSelector")
    selected = dict(_namespace_label(pod, term, field))
    selector = term["labelSelector"]
    selected |= selector.get("matchLabels") or {}
    for expression in selector.get("matchExpressions") or ():
        values = list(expression.get("values") or [])
        if expression.get("operator") != "In" or len(values) != 1:
            raise UnsupportedConstraint(f"{field} that selects pods by anything else than labels with one value")
        selected[expression["key"]] = values[0]
    return PodAffinityTerm(tuple(sorted(selected.items())), str(term.get("topologyKey", "")))


def _namespace_label(pod: Pod, term: Mapping[str, Any], field: str) -> Mapping[str, str]:
    """Selects pods of the pod's own namespace, of one other namespace, or (with no label) of all namespaces."""
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    if selector is not None and (selector or names):
        raise UnsupportedConstraint(f"{field} that selects namespaces by labels")
    if len(names) > 1:
        raise UnsupportedConstraint(f"{field} over several namespaces")
    if selector is not None:
        return {}
    return {NAMESPACE: names[0] if names else pod.metadata.namespace}


def _asks_for_unknown_resources(pod: Pod) -> bool:
    return bool(pod.spec.resource_claims) or any(name not in _KNOWN_RESOURCES for name in _resources(pod))


def _resources(pod: Pod) -> Iterator[str]:
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        yield from container.resources.limits
        yield from container.resources.requests


def _check_resources(pod: Pod) -> None:
    if pod.spec.resource_claims:
        raise UnsupportedConstraint(f"devices by resourceClaims; write {labels.GPU_RESOURCE} in limits instead")
    for name in _resources(pod):
        if name not in _KNOWN_RESOURCES:
            raise UnsupportedConstraint(f"resource {name}, of which it does not know how much each node has")


# --- the pods of one job


def affinity_label_keys(constraints: PodConstraints) -> frozenset[str]:
    """The labels that its affinity terms select by."""
    terms = (constraints.pod_affinity, constraints.pod_anti_affinity)
    return frozenset(key for term in terms if term for key, _ in term.labels)


def affinity_labels(pods: Sequence[Pod], keys: frozenset[str]) -> Mapping[str, str]:
    """The labels of a job that affinity terms can select by: of `keys`, those with the same value on all its pods."""
    if not keys:
        return {}
    first, *others = pods
    values = {**first.metadata.labels, NAMESPACE: first.metadata.namespace}
    return {
        key: values[key]
        for key in sorted(keys)
        if key in values and all(key == NAMESPACE or pod.metadata.labels.get(key) == values[key] for pod in others)
    }


def job_constraints(constraints: Iterable[PodConstraints]) -> PodConstraints:
    """The affinity terms of a job, from those of its pods. The planner allows one term of each sort for a job."""
    distinct = list(dict.fromkeys(constraints))
    hindrance = next((each.hindrance for each in distinct if each.hindrance), "")
    terms = {(each.pod_affinity, each.pod_anti_affinity) for each in distinct}
    if not hindrance and len(terms) > 1:
        hindrance = "its pods have different rules about pods near them, and this scheduler can give only one to a job"
    if hindrance:
        return PodConstraints(hindrance=hindrance)
    pod_affinity, pod_anti_affinity = next(iter(terms), (None, None))
    return PodConstraints(pod_affinity=pod_affinity, pod_anti_affinity=pod_anti_affinity)
