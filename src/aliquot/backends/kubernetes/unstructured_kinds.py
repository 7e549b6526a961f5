"""Kubernetes kinds that only this package reads or writes. They are plain JSON and have no typed dataclass."""

from __future__ import annotations

from typing import Any

from aliquot.api import Kind

UnstructuredKind = Kind[dict[str, Any]]


def _kind(
    name: str, plural: str, group: str = "", *, namespaced: bool = True, has_status: bool = False
) -> UnstructuredKind:
    return Kind(name=name, type=dict, plural=plural, group=group, namespaced=namespaced, has_status=has_status)


_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"

CONFIG_MAP = _kind("ConfigMap", "configmaps")
SECRET = _kind("Secret", "secrets")
SERVICE_ACCOUNT = _kind("ServiceAccount", "serviceaccounts")
ROLE = _kind("Role", "roles", _RBAC)
ROLE_BINDING = _kind("RoleBinding", "rolebindings", _RBAC)
CLUSTER_ROLE = _kind("ClusterRole", "clusterroles", _RBAC, namespaced=False)
CLUSTER_ROLE_BINDING = _kind("ClusterRoleBinding", "clusterrolebindings", _RBAC, namespaced=False)
PRIORITY_CLASS = _kind("PriorityClass", "priorityclasses", "scheduling.k8s.io", namespaced=False)
MUTATING_WEBHOOK = _kind("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", _ADMISSION, namespaced=False)
ADMISSION_POLICY = _kind("ValidatingAdmissionPolicy", "validatingadmissionpolicies", _ADMISSION, namespaced=False)
ADMISSION_BINDING = _kind(
    "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", _ADMISSION, namespaced=False
)
DISRUPTION_BUDGET = _kind("PodDisruptionBudget", "poddisruptionbudgets", "policy", has_status=True)
DAEMON_SET = _kind("DaemonSet", "daemonsets", "apps", has_status=True)
PERSISTENT_VOLUME = _kind("PersistentVolume", "persistentvolumes", namespaced=False, has_status=True)
STORAGE_CLASS = _kind("StorageClass", "storageclasses", "storage.k8s.io", namespaced=False)
