"""Admission: what an object must satisfy before it is stored, and what the platform fills in.

The REST API and the Kubernetes controllers that create workloads share it. `validation` checks every kind by its type,
`references` checks names of other objects, and `hooks` lists the kinds with rules of their own. Who may write at all is
not decided here (`aliquot.server.access_control`), nor how objects are stored (`aliquot.store`).
"""
