"""Runs the examples of the documentation: console.py for pages with a server, scenarios.py for `aliquot simulate`."""
