"""Access rules on a real API server: the RBAC controller, issued kubeconfigs and protected fields."""
