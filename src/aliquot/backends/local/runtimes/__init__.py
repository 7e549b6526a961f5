"""Ways to run a pod on this machine."""
