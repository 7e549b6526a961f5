"""Fixtures for every test."""

pytest_plugins = ["kube.fixtures", "bodies.fixtures", "pods.fixtures", "seeds.fixtures", "native.fixtures"]
