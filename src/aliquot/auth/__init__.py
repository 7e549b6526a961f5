"""Identities and permissions: roles and the permission check, API tokens, and kubeconfigs that the platform issues.

Everything here is pure: the server reads access rules and tokens from its store and asks (`server/access_control.py`),
and the Kubernetes back end turns the same roles into RBAC. Start with `roles.py`.
"""
