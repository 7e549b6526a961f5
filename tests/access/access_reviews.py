"""Asks an API server what users may do, for every resource and verb that it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aliquot.store.drivers.kubernetes import KubernetesDriver

REVIEWS = "/apis/authorization.k8s.io/v1"
# Verbs that discovery does not list, because they are checked inside other requests.
HIDDEN_VERBS = ("impersonate", "bind", "escalate", "approve", "sign", "attest", "use", "*")


@dataclass(frozen=True, order=True, slots=True)
class AccessQuestion:
    verb: str
    group: str
    resource: str  # with its subresource: pods/exec
    namespace: str  # empty: all namespaces, or a cluster-scoped resource

    def attributes(self) -> dict[str, str]:
        resource, _, subresource = self.resource.partition("/")
        return {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
        }


async def resources(driver: KubernetesDriver) -> dict[tuple[str, str], tuple[set[str], bool]]:
    """(group, resource) -> its verbs, and whether it is namespaced; for every group and version that is served."""
    read = driver._transport.read
    groups = (await read("/apis"))["groups"]
    paths = ["/api/v1", *(f"/apis/{version['groupVersion']}" for group in groups for version in group["versions"])]
    known: dict[tuple[str, str], tuple[set[str], bool]] = {}
    for path in paths:
        group = path.split("/")[2] if path.startswith("/apis/") else ""
        for resource in (await read(path))["resources"]:
            verbs, namespaced = known.get((group, resource["name"]), (set(), resource["namespaced"]))
            known[group, resource["name"]] = verbs | set(resource["verbs"]), namespaced
    return known


async def all_questions(driver: KubernetesDriver, namespaces: Iterable[str]) -> list[AccessQuestion]:
    """Every verb on every resource, in each namespace and in all namespaces."""
    names = list(namespaces)
    questions: list[AccessQuestion] = []
    for (group, resource), (verbs, namespaced) in sorted((await resources(driver)).items()):
        scopes = [*names, ""] if namespaced else [""]
        for verb in sorted({*verbs, "deletecollection", *HIDDEN_VERBS}):
            questions += [AccessQuestion(verb, group, resource, scope) for scope in scopes]
    # Resources that have verbs but no URL.
    hidden = [("", name, "impersonate") for name in ("users", "groups", "uids")]
    hidden += [("authentication.k8s.io", "userextras/scopes", "impersonate"), ("*", "*", "*")]
    questions += [
        AccessQuestion(verb, group, resource, scope) for group, resource, verb in hidden for scope in (*names, "")
    ]
    return questions


async def allowed(
    driver: KubernetesDriver, questions: Iterable[AccessQuestion], *, user: str = ""
) -> set[AccessQuestion]:
    """What the API server allows the driver's own user, or the user of that name."""
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"

    async def is_allowed(question: AccessQuestion) -> bool:
        spec: dict[str, Any] = {"resourceAttributes": question.attributes(), **({"user": user} if user else {})}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        result = await driver._transport.write("POST", f"{REVIEWS}/{kind.lower()}s", review)
        return bool(result["status"]["allowed"])

    questions = list(questions)
    answers = await asyncio.gather(*map(is_allowed, questions))
    return {question for question, yes in zip(questions, answers, strict=True) if yes}
