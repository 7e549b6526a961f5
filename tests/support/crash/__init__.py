"""Helpers of the tests that kill the server or fail its disk (tests/e2e/test_crash_*.py).

clients.py and jobs.py generate load and know what must survive; processes.py and steady_state.py check the result;
disk.py makes disks fail. Starting and killing a server is in support/stores/process.py.
"""
