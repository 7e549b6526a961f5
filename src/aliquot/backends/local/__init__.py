"""The back end that runs pods on this machine, without Kubernetes and without a container engine.

    assembly         puts the agent together; `local_agent` is the entry point
    runner           the agent: feeds events to the state machine and carries out its commands
    state_machine    the agent's decisions, pure
    runtime          the seam between the agent and a runtime; runtimes/ holds the runtime for plain processes
    devices/         nodes and GPUs, real or simulated
    memory_enforcer  holds pods to their GPU memory limits

GPU sharing rules that Kubernetes follows as well are in aliquot.gpu.
"""
