"""Fixtures for every test."""

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "support.kubernetes.fixtures",
    "support.stores.fixtures",
    "support.pods.fixtures",
    "support.seeds.fixtures",
    "native.fixtures",
    "support.gpus.fixtures",
]

# A shell that runs us in the background has us ignore Ctrl-C, and all that we start with us; but tests type it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no fault of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
