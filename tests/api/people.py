"""Words for tests of access: make somebody, give a role, make a project, act as somebody."""

from __future__ import annotations

from dataclasses import dataclass

from api.wire import Api, Json, named, unique, until


@dataclass(frozen=True)
class Person:
    name: str
    api: Api


class Office:
    """What an administrator does before a test begins."""

    def __init__(self, admin: Api) -> None:
        self.admin = admin

    def person(self, word: str = "ann", *, groups: list[str] | None = None) -> Person:
        """A user with a token and no rights."""
        name = unique(word)
        self.admin.post("users", named(name, {"groups": groups or []})).ok(201)
        return Person(name, self.bearing(self.token(name)))

    def bearing(self, token: str | None) -> Api:
        return self.admin.bearing(token)

    def token(self, user: str, **spec: str) -> str:
        return str(self.admin.post("tokens", named(unique("token"), {"user": user, **spec})).ok(201)["token"])

    def rule(self, role: str, scope: Json, *, user: str = "", group: str = "") -> str:
        """An access rule, made and not yet known to be in force."""
        name = unique("rule")
        subject = {"kind": "group", "name": group} if group else {"kind": "user", "name": user}
        self.admin.post("accessrules", named(name, {"subject": subject, "role": role, "scope": scope})).ok(201)
        return name

    def grant(self, person: Person, role: str, scope: Json) -> Person:
        """The same, and in force when it returns."""
        self.rule(role, scope, user=person.name)
        until(lambda: self.roles(person), "the rule to be in force")
        return person

    def roles(self, person: Person) -> list[str]:
        return [grant["role"] for grant in person.api.get("whoami").ok()["roles"]]

    def project(self, word: str = "team", **spec: str) -> str:
        """A project with its namespace, ready for use."""
        name = unique(word)
        self.admin.post("projects", named(name, spec)).ok(201)
        self.ready(name)
        return name

    def ready(self, name: str) -> None:
        until(lambda: self.phase(name) == "Ready", f"project {name} to be ready")

    def phase(self, name: str) -> str:
        return str(self.admin.get(f"projects/{name}").ok().get("status", {}).get("phase", ""))

    def member(self, project: str, role: str = "l1-researcher") -> Person:
        """Somebody with a role in one project, when both are in force."""
        person = self.grant(self.person(), role, in_project(project))
        until(lambda: person.api.get(f"{space(project)}/workloads").status == 200, "the member to see the project")
        return person


def in_project(name: str) -> Json:
    return {"kind": "project", "name": name}


def in_department(name: str) -> Json:
    return {"kind": "department", "name": name}


CLUSTER: Json = {"kind": "cluster"}


def space(project: str) -> str:
    """Where a project's objects are."""
    return f"namespaces/runai-{project}"


class Company:
    """Two projects, `mine` and `theirs`, each in a department of its own; people are hired when first asked for."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.departments: dict[str, str] = {}
        self.projects: dict[str, str] = {}
        for whose in ("mine", "theirs"):
            self.departments[whose] = unique("dept")
            office.admin.post("departments", named(self.departments[whose])).ok(201)
            self.projects[whose] = office.project("team", department=self.departments[whose])
        self._people: dict[tuple[str, str], Person] = {}

    def person(self, role: str, scope: str) -> Person:
        """Somebody with a role in `mine`, in its department or in the whole cluster."""
        if (role, scope) not in self._people:
            names = {"project": self.projects["mine"], "department": self.departments["mine"]}
            where = {"kind": scope, "name": names[scope]} if scope in names else CLUSTER
            self._people[role, scope] = self.office.grant(self.office.person("staff"), role, where)
        return self._people[role, scope]
