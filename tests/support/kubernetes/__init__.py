"""Real Kubernetes for tests: control planes, nodes, fault injection, and what tests do with them.

cluster, fixtures            a control plane on loopback, and pytest fixtures for it; start here
kwok, kwok_testbed           nodes without machines, and `aliquot serve` on them
nodes, node_*                real kubelets and containerds, each in its own Linux namespaces
images, registry             container images for such nodes, and where the nodes pull them from
device_plugin                GPUs of such nodes
gpu_sharing                  webhook, binder and reservation collector, run by a test
fault_testbed, fault_proxy   a platform behind a proxy that injects API faults
allocation_audit             checks that no GPU is ever given twice
tcp_proxy, scripted_server   faults of the network, and scripted answers, for tests of the client
kinds, manifests             kinds and objects that tests create
"""
