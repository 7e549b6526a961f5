"""The table of kinds: one row for each, with its names, columns, rules and access."""

from __future__ import annotations

from aliquot.api.access_rule import AccessRule
from aliquot.api.department import Department
from aliquot.api.event import Event
from aliquot.api.kind import Column, Kind, Kinds
from aliquot.api.lease import Lease
from aliquot.api.namespace import Namespace
from aliquot.api.node import Node
from aliquot.api.node_pool import NodePool
from aliquot.api.persistent_volume_claim import Claim
from aliquot.api.pod import Pod
from aliquot.api.policy import Policy
from aliquot.api.project import Project
from aliquot.api.scheduling_policy import SchedulingPolicy
from aliquot.api.service import Service
from aliquot.api.template import Template
from aliquot.api.token import Token
from aliquot.api.user import User
from aliquot.api.workload import Workload
from aliquot.labels import DEVICES, EVICTION_RECORD, NOMINATION

_AGE = Column("Age", ".metadata.creationTimestamp", "date")

# Rules that span fields, as (path, CEL expression, message). The Kubernetes API server enforces them for clients that
# write to it directly. The types' own `faults` hold the same rules for our server, and some that CEL cannot express.
_AT_MOST_ONE_GPU_REQUEST = (
    "spec.compute",
    "[has(self.gpu), has(self.gpuMemory), has(self.migProfile)].filter(given, given).size() <= 1",
    "must have only one of gpu, gpuMemory and migProfile",
)
_SERVING = (
    "spec",
    "!has(self.serving) || (has(self.type) && self.type == 'inference')",
    "serving is for type inference only",
)
_DISTRIBUTED = (
    "spec",
    "!has(self.distributed) || !has(self.type) || self.type != 'inference'",
    "distributed is not for type inference",
)
_PARALLELISM = (
    "spec",
    "!has(self.parallelism) || !has(self.completions) || self.parallelism <= self.completions",
    "parallelism must not be more than completions",
)
_SCOPE = (
    "spec.scope",
    "(self.kind == 'cluster') == (!has(self.name) || self.name == '')",
    "must name a department or project, or have kind cluster and no name",
)
_POOL_LABEL = (
    "",
    "self.metadata.name == 'default' || (has(self.spec) && has(self.spec.labelKey))",
    "spec.labelKey is required for every pool but default",
)

KINDS = Kinds(
    Kind(
        "Department", Department, "departments", aliases=("dept", "depts"),
        authorization_scope="department",
        name_starts_with_letter=True, name_is_label=True, max_name_length=63,
        columns=(
            Column("GPU Quota", ".spec.quota.gpu", "number"),
            Column("GPUs", ".status.allocated.gpu", "number"),
            Column("Projects", ".status.projects", "integer"),
            Column("Phase", ".status.phase"),
            _AGE,
        ),
    ),
    Kind(
        "Project", Project, "projects", aliases=("proj",),
        authorization_scope="project",
        name_starts_with_letter=True, name_is_label=True,
        max_name_length=63 - len("runai-"),  # its namespace is runai-<project>
        selectable_fields=("spec.department", "status.phase"),
        columns=(
            Column("Department", ".spec.department"),
            Column("GPU Quota", ".spec.quota.gpu", "number"),
            Column("GPUs", ".status.allocated.gpu", "number"),
            Column("Phase", ".status.phase"),
            Column("Namespace", ".status.namespace", wide=True),
            _AGE,
        ),
    ),
    Kind(
        "NodePool", NodePool, "nodepools", aliases=("np", "node-pool", "node-pools"),
        name_starts_with_letter=True, name_is_label=True, max_name_length=63,
        columns=(
            Column("Label", ".spec.labelKey"),
            Column("Value", ".spec.labelValue"),
            Column("GPUs", ".status.total.gpu", "number"),
            Column("Allocated", ".status.allocated.gpu", "number"),
            Column("Phase", ".status.phase"),
            _AGE,
        ),
        cel_rules=(_POOL_LABEL,),
    ),
    Kind(
        "SchedulingPolicy", SchedulingPolicy, "schedulingpolicies",
        aliases=("schedpol", "scheduling-policy", "scheduling-policies"),
        columns=(
            Column("Pools", ".spec.pools"),
            Column("Spare", ".spec.spare"),
            Column("Victims", ".spec.victims"),
            _AGE,
        ),
    ),
    Kind(
        "Workload", Workload, "workloads", aliases=("wl", "job", "jobs"), namespaced=True,
        submitter_field="subject", protected_fields=(("spec", "subject"),),
        name_is_label=True, max_name_length=50,  # pods, services and labels add to the name
        selectable_fields=("spec.type", "spec.user", "status.phase"),
        columns=(
            Column("Type", ".spec.type"),
            Column("Phase", ".status.phase"),
            Column("User", ".spec.user"),
            Column("GPUs", ".status.allocated.gpu", "number"),
            Column("Image", ".spec.image", wide=True),
            Column("Node", ".status.nodes[0]", wide=True),
            _AGE,
        ),
        cel_rules=(_AT_MOST_ONE_GPU_REQUEST, _SERVING, _DISTRIBUTED, _PARALLELISM),
    ),
    Kind(
        "Template", Template, "templates", aliases=("tmpl",), namespaced=True, shared_from_system_namespace=True,
        columns=(Column("Description", ".spec.description"), Column("Default", ".spec.default", "boolean"), _AGE),
    ),
    Kind(
        "Policy", Policy, "policies", aliases=("pol",), namespaced=True, shared_from_system_namespace=True,
        columns=(Column("Types", ".spec.types"), Column("Phase", ".status.phase"), _AGE),
    ),
    Kind(
        "User", User, "users", aliases=("usr",), hidden_field="passwordHash",
        selectable_fields=("spec.email", "spec.kind"),
        columns=(Column("Email", ".spec.email"), Column("Kind", ".spec.kind"),
                 Column("Last Login", ".status.lastLogin", "date"), _AGE),
    ),
    Kind(
        "AccessRule", AccessRule, "accessrules", aliases=("ar", "access-rule", "access-rules"),
        selectable_fields=("spec.role", "spec.subject.name", "spec.scope.name"),
        columns=(
            Column("Subject", ".spec.subject.name"),
            Column("Role", ".spec.role"),
            Column("Scope", ".spec.scope.kind"),
            Column("In", ".spec.scope.name"),
            _AGE,
        ),
        cel_rules=(_SCOPE,),
    ),
    Kind(
        "Token", Token, "tokens", aliases=("tok",),
        owner_field="user", hidden_field="hash", generated_fields=("hash",), is_credential=True,
        create_response_fields=(
            ("token", "The text to send as `Authorization: Bearer <token>`. Returned only by the create."),
        ),
        supports_dry_run=False,  # the response would show a token that does not exist
        selectable_fields=("spec.user",),
        columns=(
            Column("User", ".spec.user"),
            Column("Description", ".spec.description"),
            Column("Expires", ".spec.expires", "date"),
            Column("Last Used", ".status.lastUsed", "date"),
            _AGE,
        ),
    ),
    Kind(
        "Namespace", Namespace, "namespaces", aliases=("ns",), group="",
        authorization_scope="project-namespace", name_is_label=True, max_name_length=63,
        selectable_fields=("status.phase",),
        columns=(Column("Status", ".status.phase"), _AGE),
    ),
    Kind(
        "Node", Node, "nodes", aliases=("no",), group="", status_on_create=True,
        selectable_fields=("spec.unschedulable",),
        columns=(
            Column("Ready", ".status.conditions[?(@.type==\"Ready\")].status"),
            Column("GPUs", ".status.capacity.nvidia\\.com/gpu"),
            Column("Version", ".status.nodeInfo.kubeletVersion"),
            _AGE,
        ),
    ),
    Kind(
        "Pod", Pod, "pods", aliases=("po",), group="", namespaced=True, graceful_deletion=True,
        protected_fields=(
            ("spec", "nodeName"),
            ("metadata", "annotations", DEVICES),
            ("metadata", "annotations", EVICTION_RECORD),
            ("metadata", "annotations", NOMINATION),
        ),
        selectable_fields=("spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "status.phase", "status.podIP"),
        columns=(Column("Status", ".status.phase"), Column("Node", ".spec.nodeName"), _AGE),
    ),
    Kind(
        "Service", Service, "services", aliases=("svc",), group="", namespaced=True,
        name_is_label=True, max_name_length=63,
        selectable_fields=("spec.type", "spec.clusterIP"),
        columns=(Column("Type", ".spec.type"), Column("Cluster-IP", ".spec.clusterIP"), _AGE),
    ),
    Kind(
        "PersistentVolumeClaim", Claim, "persistentvolumeclaims", aliases=("pvc", "claim", "claims"),
        group="", namespaced=True,
        columns=(
            Column("Status", ".status.phase"),
            Column("Capacity", ".status.capacity.storage"),
            Column("StorageClass", ".spec.storageClassName"),
            _AGE,
        ),
    ),
    Kind(
        "Event", Event, "events", aliases=("ev",), group="", namespaced=True, has_status=False,
        selectable_fields=(
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "reason", "type", "reportingComponent",
        ),
        columns=(
            Column("Last Seen", ".lastTimestamp", "date"),
            Column("Type", ".type"),
            Column("Reason", ".reason"),
            Column("Object", ".involvedObject.name"),
            Column("Message", ".message"),
        ),
    ),
    Kind(
        "Lease", Lease, "leases", group="coordination.k8s.io", namespaced=True, has_status=False,
        columns=(Column("Holder", ".spec.holderIdentity"), _AGE),
    ),
)  # fmt: skip
