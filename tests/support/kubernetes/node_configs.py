"""Configuration files of a node's programs; nodes.py fills in `%(name)s`."""

from __future__ import annotations

# Containers cannot have more rights than this process has, so OOM scores are not changed.
CONTAINERD = """version = 2
root = "%(folder)s/containerd"
state = "%(folder)s/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "%(folder)s/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "%(pause)s"
restrict_oom_score_adj = true
disable_hugetlb_controller = true
tolerate_missing_hugetlb_controller = true
disable_apparmor = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "%(runc)s"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%(plugins)s"
conf_dir = "%(folder)s/cni"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "%(folder)s/registries"
"""

KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %(address)s
port: 10250
readOnlyPort: 0
healthzPort: 0
tlsCertFile: %(pki)s/%(name)s.crt
tlsPrivateKeyFile: %(pki)s/%(name)s.key
authentication: {x509: {clientCAFile: %(pki)s/ca.crt}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://%(folder)s/run/containerd.sock
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%(cgroup)s
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
oomScoreAdj: 0
maxOpenFiles: 20000
failSwapOn: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
registryPullQPS: 0
volumePluginDir: /var/lib/kubelet/volumeplugins
makeIPTablesUtilChains: false
"""

CNI = """{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isDefaultGateway": true,
      "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "%(pods)s"}]]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
"""
