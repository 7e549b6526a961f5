"""Explanations of the last plan: why a job waits, what would let it run, and what could stop it.

`service.Explainer` is the entry point; it runs everything that needs the planner in a worker thread. `report` turns a
decision into facts and sentences, with help from `risk` and `text`. The HTTP routes are in `aliquot.server.explain`.
"""
