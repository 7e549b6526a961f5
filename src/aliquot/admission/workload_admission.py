"""Workload admission: templates and policies fill in a new workload, and policies restrict it, for every client alike.

A workload is filled in once, when it is created. In order of precedence: values that a policy imposes, the submission,
the template, the policies' defaults.
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar

from aliquot import labels
from aliquot.admission.kind_hooks import KindHooks, PreparedObject
from aliquot.admission.workload_defaults import changed_paths, jupyter_defaults, with_defaults
from aliquot.admission.workload_policies import (
    NO_POLICY,
    WIDEST_POLICY_WINS,
    EffectivePolicy,
    apply_policy,
    effective_policy,
    settable_by_others,
    violations,
)
from aliquot.api import KINDS, Json, Namespace, Policy, Project, Template, check_name, decode, encode
from aliquot.errors import Fault, Invalid, NotFound, OverLimit
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.informer import Informers


class WorkloadAdmission(KindHooks):
    """Applies the templates and policies that the informers show."""

    validates_updates: ClassVar[bool] = True

    def __init__(self, driver: StoreDriver, informers: Informers) -> None:
        super().__init__(driver, informers)
        self._templates = informers.of(Template)
        self._policies = informers.of(Policy)
        self._projects = informers.of(Project)
        self._namespaces = informers.of(Namespace)

    async def prepare_create(self, data: Json, namespace: str, subject: str) -> PreparedObject:
        return PreparedObject(await self.apply_defaults(data, namespace))

    async def apply_defaults(self, data: Json, namespace: str) -> Json:
        """A new workload with its template, policies and Jupyter defaults applied; as it is where it is malformed."""
        given, metadata = data.get("spec") or {}, data.get("metadata")
        if not isinstance(given, dict) or not isinstance(metadata, dict):
            return data
        spec, sources = dict(given), []
        template = await self._template(given, namespace)
        if template is not None:
            before, spec = spec, with_defaults(spec, settable_by_others(encode(template.spec.values)))
            spec["template"] = template.metadata.name
            sources.append(_source("template", template.metadata.namespace, template.metadata.name, before, spec))
        policy = self._effective_policy(spec, namespace)
        before, spec = spec, apply_policy(spec, policy)
        if changed_paths(before, spec):
            sources.append(_source("policy", "", " and ".join(policy.names), before, spec))
        if spec.get("jupyter") is True:
            spec = with_defaults(spec, jupyter_defaults())
        if sources:
            annotations = metadata.get("annotations") or {}
            if isinstance(annotations, dict):
                metadata = {**metadata, "annotations": {**annotations, labels.FILLED_BY: "; ".join(sources)}}
        return {**data, "metadata": metadata, "spec": spec}

    def validate(self, document: Document, old: Document | None = None) -> None:
        """`OverLimit` lists the policy rules that the workload breaks."""
        spec, before = document.data.get("spec") or {}, (old.data.get("spec") or {}) if old else None
        if before == spec:
            return
        faults = list(violations(spec, self._effective_policy(spec, document.namespace), before))
        if faults:
            text = "; ".join(f"{_short(fault.path)}: {fault.text}" for fault in faults)
            raise OverLimit(text, faults=[Fault(f"spec.{fault.path}", fault.text) for fault in faults])
        if old is None and not spec.get("image"):
            fault = Fault("spec.image", "is required: give one, or a template that has one")
            raise Invalid.because("workload", [fault])

    async def _template(self, given: Json, namespace: str) -> Template | None:
        """The template that the spec names, or else a default one. The project's come before the cluster's."""
        name, namespaces = given.get("template"), (namespace, labels.SYSTEM_NAMESPACE)
        if isinstance(name, str) and name:
            # No object can be called batch_ops, but users type it.
            spellings = dict.fromkeys((name, name.replace("_", "-").lower()))
            for where, spelling in product(namespaces, spellings):
                template = self._templates.get(spelling, where) or await self._read_template(spelling, where)
                if template is not None:
                    return template
            fault = Fault("spec.template", f"template {name!r} does not exist")
            raise Invalid.because("workload", [fault], hint="`runai list templates` shows those there are")
        by_name = sorted(self._templates, key=lambda template: template.metadata.name)
        for where in namespaces:
            for template in by_name:
                is_default = template.metadata.namespace == where and template.spec.default
                type_ = given.get("type") or template.spec.values.type
                if is_default and type_ in (template.spec.types or (type_,)):
                    return template
        return None

    async def _read_template(self, name: str, namespace: str) -> Template | None:
        """From the store: the informer may not show a template that was just created."""
        kind = KINDS.of(Template)
        try:
            return decode(Template, (await self._driver.get(kind, check_name(kind, name), namespace)).data)
        except (NotFound, Invalid):
            return None

    def _effective_policy(self, spec: Json, namespace: str) -> EffectivePolicy:
        if not len(self._policies):
            return NO_POLICY
        owner = self._namespaces.get(namespace)
        project = self._projects.get(labels.project_of(owner.metadata.labels)) if owner else None
        department = (project.spec.department or labels.DEFAULT_DEPARTMENT) if project else ""
        ranked = []
        for policy in self._policies:
            rank = _rank(policy, namespace, department)
            if rank is not None and _applies_to(policy, spec):
                ranked.append((rank, policy.metadata.name, policy))
        if not ranked:
            return NO_POLICY
        # Of two policies with the same rank, the first by name counts as the wider one.
        return effective_policy(policy for _, _, policy in sorted(ranked, key=lambda entry: entry[:2]))


def _rank(policy: Policy, namespace: str, department: str) -> int | None:
    """0 for a policy of the cluster, 1 of the workload's department, 2 of its project; None for any other."""
    if policy.metadata.namespace == labels.SYSTEM_NAMESPACE:
        if policy.spec.department is None:
            return 0
        return 1 if policy.spec.department == department else None
    return 2 if policy.metadata.namespace == namespace else None


def _applies_to(policy: Policy, spec: Json) -> bool:
    types, distributed = policy.spec.types, policy.spec.distributed
    if types and spec.get("type", "training") not in types:
        return False
    return distributed is None or distributed == bool(spec.get("distributed"))


def _source(kind: str, namespace: str, name: str, before: Json, after: Json) -> str:
    """One entry of the annotation that says which template or policy filled in which fields."""
    paths = ", ".join(sorted(path for path in changed_paths(before, after) if path != "template"))
    return f"{kind} {f'{namespace}/' if namespace else ''}{name}" + (f" ({paths})" if paths else "")


def _short(path: str) -> str:
    """The field as users of the command line know it: `gpu`, not `compute.gpu`."""
    return next((path.removeprefix(prefix) for prefix in WIDEST_POLICY_WINS if path.startswith(prefix)), path)
