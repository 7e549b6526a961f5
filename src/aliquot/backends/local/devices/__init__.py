"""Nodes and their GPUs: real ones through NVIDIA's driver, or simulated ones.

    node_devices       the seam: `Devices`, and the Node object that the store keeps
    real, simulated    the two implementations of `Devices`
    gpu_driver, nvml   the seam to NVIDIA's driver, and its implementation
    memory_audit, dynamic_fractions    pure rules; memory_enforcer.py, one folder up, carries them out

What a pod with GPUs is given is decided in aliquot.gpu; how a runtime carries that out is decided in runtimes/.
"""
