"""What an API server says when it is asked who may do what, for every resource and verb that it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aliquot.store.drivers.kubernetes import KubernetesDriver

REVIEWS = "/apis/authorization.k8s.io/v1"
# Verbs that no discovery lists, because they are asked for inside other requests.
HIDDEN_VERBS = ("impersonate", "bind", "escalate", "approve", "sign", "attest", "use", "*")


@dataclass(frozen=True, order=True, slots=True)
class AccessQuestion:
    verb: str
    group: str
    resource: str  # with its part: pods/exec
    namespace: str  # empty: everywhere, or a resource of the whole cluster

    def attributes(self) -> dict[str, str]:
        resource, _, part = self.resource.partition("/")
        return {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": part,
            "namespace": self.namespace,
        }


async def resources(driver: KubernetesDriver) -> dict[tuple[str, str], tuple[set[str], bool]]:
    """(group, resource) -> its verbs, and whether it is in namespaces; of every group and version that is served."""
    read = driver._transport.read
    groups = (await read("/apis"))["groups"]
    paths = ["/api/v1", *(f"/apis/{one['groupVersion']}" for group in groups for one in group["versions"])]
    found: dict[tuple[str, str], tuple[set[str], bool]] = {}
    for path in paths:
        group = path.split("/")[2] if path.startswith("/apis/") else ""
        for one in (await read(path))["resources"]:
            verbs, namespaced = found.get((group, one["name"]), (set(), one["namespaced"]))
            found[group, one["name"]] = verbs | set(one["verbs"]), namespaced
    return found


async def questions(driver: KubernetesDriver, namespaces: Iterable[str]) -> list[AccessQuestion]:
    """Every verb on every resource, in each namespace and everywhere at once."""
    spaces = list(namespaces)
    asks: list[AccessQuestion] = []
    for (group, resource), (verbs, namespaced) in sorted((await resources(driver)).items()):
        places = [*spaces, ""] if namespaced else [""]
        for verb in sorted({*verbs, "deletecollection", *HIDDEN_VERBS}):
            asks += [AccessQuestion(verb, group, resource, place) for place in places]
    # What has verbs but no address of its own.
    hidden = [("", name, "impersonate") for name in ("users", "groups", "uids")]
    hidden += [("authentication.k8s.io", "userextras/scopes", "impersonate"), ("*", "*", "*")]
    asks += [
        AccessQuestion(verb, group, resource, place) for group, resource, verb in hidden for place in (*spaces, "")
    ]
    return asks


async def allowed(driver: KubernetesDriver, asks: Iterable[AccessQuestion], *, user: str = "") -> set[AccessQuestion]:
    """What the API server says yes to, for whoever asks, or for a user of that name."""
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"

    async def may(ask: AccessQuestion) -> bool:
        spec: dict[str, Any] = {"resourceAttributes": ask.attributes(), **({"user": user} if user else {})}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        answer = await driver._transport.write("POST", f"{REVIEWS}/{kind.lower()}s", review)
        return bool(answer["status"]["allowed"])

    asked = list(asks)
    answers = await asyncio.gather(*map(may, asked))
    return {ask for ask, yes in zip(asked, answers, strict=True) if yes}
