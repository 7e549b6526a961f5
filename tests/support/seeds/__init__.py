"""Helpers for tests with the commands of the customer's documents on a real platform.

platform             a server process with a user's home folder, and checks of its jobs
fixtures             the installed wheel, and platforms that run from it
documented_commands  the first commands of the documents and their output
fairness_steps       the documents' commands for over-quota and fairness, and the expected state after each
fairness_run         runs the fairness steps and checks the cluster
tmux                 a terminal that a test types into
"""
