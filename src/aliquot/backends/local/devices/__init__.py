"""Nodes and their GPUs: real ones through NVIDIA's driver, or simulated ones."""
