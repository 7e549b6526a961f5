"""Runs the pods of this machine's nodes: devices, images, runtimes."""
