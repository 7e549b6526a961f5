"""Kinds of Kubernetes that only this package reads or writes, as plain JSON: nobody else needs to know their shape."""

from __future__ import annotations

from typing import Any

from aliquot.api import Kind

UnstructuredKind = Kind[dict[str, Any]]


def _raw(
    name: str, plural: str, group: str = "", *, namespaced: bool = True, has_status: bool = False
) -> UnstructuredKind:
    return Kind(name=name, type=dict, plural=plural, group=group, namespaced=namespaced, has_status=has_status)


_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"

CONFIG_MAP = _raw("ConfigMap", "configmaps")
SECRET = _raw("Secret", "secrets")
SERVICE_ACCOUNT = _raw("ServiceAccount", "serviceaccounts")
ROLE = _raw("Role", "roles", _RBAC)
ROLE_BINDING = _raw("RoleBinding", "rolebindings", _RBAC)
CLUSTER_ROLE = _raw("ClusterRole", "clusterroles", _RBAC, namespaced=False)
CLUSTER_ROLE_BINDING = _raw("ClusterRoleBinding", "clusterrolebindings", _RBAC, namespaced=False)
PRIORITY_CLASS = _raw("PriorityClass", "priorityclasses", "scheduling.k8s.io", namespaced=False)
MUTATING_WEBHOOK = _raw("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", _ADMISSION, namespaced=False)
ADMISSION_POLICY = _raw("ValidatingAdmissionPolicy", "validatingadmissionpolicies", _ADMISSION, namespaced=False)
ADMISSION_BINDING = _raw(
    "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", _ADMISSION, namespaced=False
)
DISRUPTION_BUDGET = _raw("PodDisruptionBudget", "poddisruptionbudgets", "policy", has_status=True)
DAEMON_SET = _raw("DaemonSet", "daemonsets", "apps", has_status=True)
PERSISTENT_VOLUME = _raw("PersistentVolume", "persistentvolumes", namespaced=False, has_status=True)
STORAGE_CLASS = _raw("StorageClass", "storageclasses", "storage.k8s.io", namespaced=False)
