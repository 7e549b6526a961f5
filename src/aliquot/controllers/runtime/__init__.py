"""What every controller is built on: the workqueue with its worker, and leader election.

No rule about a kind of object belongs here. `workqueue.Controller` is where to start reading.
"""
