"""Fixtures for every test."""

import signal

pytest_plugins = [
    "kube.fixtures",
    "bodies.fixtures",
    "pods.fixtures",
    "seeds.fixtures",
    "native.fixtures",
    "gpus.fixtures",
]

# A shell that runs us in the background has us ignore Ctrl-C, and all that we start with us; but tests type it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
