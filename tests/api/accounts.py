"""Accounts for tests of access: users with tokens, access rules and projects."""

from __future__ import annotations

from dataclasses import dataclass

from api.http_client import Api, Json, named, unique
from support.waiting import wait_until


@dataclass(frozen=True)
class User:
    name: str
    api: Api


class Accounts:
    """Creates users, access rules and projects as the administrator."""

    def __init__(self, admin: Api) -> None:
        self.admin = admin

    def user(self, prefix: str = "ann", *, groups: list[str] | None = None) -> User:
        """A user with a token and no access rule."""
        name = unique(prefix)
        self.admin.post("users", named(name, {"groups": groups or []})).ok(201)
        return User(name, self.with_token(self.token(name)))

    def with_token(self, token: str | None) -> Api:
        return self.admin.with_token(token)

    def token(self, user: str, **spec: str) -> str:
        return str(self.admin.post("tokens", named(unique("token"), {"user": user, **spec})).ok(201)["token"])

    def rule(self, role: str, scope: Json, *, user: str = "", group: str = "") -> str:
        """Creates an access rule, which may not be in force yet."""
        name = unique("rule")
        subject = {"kind": "group", "name": group} if group else {"kind": "user", "name": user}
        self.admin.post("accessrules", named(name, {"subject": subject, "role": role, "scope": scope})).ok(201)
        return name

    def grant(self, user: User, role: str, scope: Json) -> User:
        """Creates an access rule and waits until it is in force."""
        self.rule(role, scope, user=user.name)
        wait_until(lambda: self.roles(user), "the rule to be in force")
        return user

    def roles(self, user: User) -> list[str]:
        return [role["role"] for role in user.api.get("whoami").ok()["roles"]]

    def project(self, prefix: str = "team", **spec: str) -> str:
        """A project with its namespace, ready for use."""
        name = unique(prefix)
        self.admin.post("projects", named(name, spec)).ok(201)
        self.ready(name)
        return name

    def ready(self, name: str) -> None:
        wait_until(lambda: self.phase(name) == "Ready", f"project {name} to be ready")

    def phase(self, name: str) -> str:
        return str(self.admin.get(f"projects/{name}").ok().get("status", {}).get("phase", ""))

    def member(self, project: str, role: str = "l1-researcher") -> User:
        """A user with a role in the project, once the rule is in force."""
        user = self.grant(self.user(), role, in_project(project))
        wait_until(
            lambda: user.api.get(f"{project_path(project)}/workloads").status == 200, "the member to see the project"
        )
        return user


def in_project(name: str) -> Json:
    return {"kind": "project", "name": name}


def in_department(name: str) -> Json:
    return {"kind": "department", "name": name}


CLUSTER: Json = {"kind": "cluster"}


def project_path(project: str) -> str:
    """Path of the project's namespace."""
    return f"namespaces/runai-{project}"


class TwoProjects:
    """Two projects, `own` and `other`, each in its own department, with users that are created on first use."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.departments: dict[str, str] = {}
        self.projects: dict[str, str] = {}
        for which in ("own", "other"):
            self.departments[which] = unique("dept")
            accounts.admin.post("departments", named(self.departments[which])).ok(201)
            self.projects[which] = accounts.project("team", department=self.departments[which])
        self._users: dict[tuple[str, str], User] = {}

    def user(self, role: str, scope: str) -> User:
        """A user with a role in project `own`, in its department or in the cluster."""
        if (role, scope) not in self._users:
            names = {"project": self.projects["own"], "department": self.departments["own"]}
            where = {"kind": scope, "name": names[scope]} if scope in names else CLUSTER
            self._users[role, scope] = self.accounts.grant(self.accounts.user("staff"), role, where)
        return self._users[role, scope]
