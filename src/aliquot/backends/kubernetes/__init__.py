"""What only Kubernetes needs: the API server's side of what the agent does on one machine.

Nothing below knows of it; `serve` puts it together. Everything else of the platform runs on both bodies unchanged.
"""
