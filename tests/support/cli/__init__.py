"""Helpers for tests of the command line: programs on a store in memory, and a server with scripted pods."""
