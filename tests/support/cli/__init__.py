"""The command line against a store in memory, and a server whose pods a test scripts."""
