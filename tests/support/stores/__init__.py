"""Helpers of the store tests: every driver behind one fixture, a namespace per test, and a server that may be killed.

fixtures.py has the fixtures; namespace.py is what a test works with; running.py runs loops of any component.
"""
