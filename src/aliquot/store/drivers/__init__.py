"""Implementations of `store.driver.StoreDriver`: memory, SQLite, the Kubernetes API and the REST API of another server.

Only `serve.py` and the client choose one. tests/store/conformance runs against each.
"""
