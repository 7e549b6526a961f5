"""A small cluster for tests of the live scheduler and the controllers."""
