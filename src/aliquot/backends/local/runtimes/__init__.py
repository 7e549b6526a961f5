"""Runs pods as processes of this machine.

    process         the runtime (aliquot.backends.local.runtime.Runtime); the entry point
    launcher        starts one pod or one command in a pod; runs as a process of its own, forked by `forkserver`
    launch_spec     what the launcher is given; pod_folder: what is stored of a pod on disk
    sandbox         the pod's own root and namespaces, when the platform runs as root
    cgroups, pod_cgroups    memory, CPU and GPU memory limits
    log_file, exec_process, ports, preemption_files    how users and jobs reach a running pod

A container engine would be another runtime next to `process`.
"""
