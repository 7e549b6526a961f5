"""The Kubernetes backend: binds, evicts and watches pods through a cluster's API server.

Everything that only a cluster needs is here: the binder, the admission webhook, reservation pods for shared GPUs, RBAC,
kubeconfigs, lost nodes and Run:ai's custom resources. What one machine needs is in `backends.local`; the scheduler and
the controllers run on both backends unchanged. `assembly.kubernetes_backend` is the entry point; `serve` calls it.
"""
