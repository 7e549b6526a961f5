"""Kubeconfigs for users: `POST projects/NAME/kubeconfig`.

The caller must be allowed to create access rules for the project, because the kubeconfig has another user's
permissions. The Kubernetes back end issues it (`KubeconfigIssuer`); without Kubernetes the request is refused.
"""

from __future__ import annotations

from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot import units
from aliquot.api import KINDS, Json, Project, check_name
from aliquot.auth.kubeconfigs import KubeconfigIssuer
from aliquot.errors import Fault, Invalid
from aliquot.labels import API_VERSION
from aliquot.server.access_control import AccessControl
from aliquot.server.http_json import json_response, read_json
from aliquot.server.object_routes import PREFIX

KUBECONFIG: Final = f"{PREFIX}/projects/{{name}}/kubeconfig"
DEFAULT_SECONDS: Final = 24 * 3600
# Kubernetes issues no shorter tokens. A token that lives longer than a year is forgotten.
MIN_SECONDS: Final = 600
MAX_SECONDS: Final = 365 * 24 * 3600
log = structlog.get_logger()


class KubeconfigRoutes:
    def __init__(self, access: AccessControl, issuer: KubeconfigIssuer | None) -> None:
        self._access = access
        self._issuer = issuer

    def routes(self) -> list[Route]:
        return [Route(KUBECONFIG, self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        caller = await self._access.authenticate(request.headers.get("authorization"))
        project = request.path_params["name"]
        self._access.require_in_project(caller, "create", KINDS.named("AccessRule"), project)
        user, seconds = _parse_request(await read_json(request))
        if self._issuer is None:
            raise Invalid(
                "there is no Kubernetes here, so no kubeconfig",
                hint="`aliquot token create` makes access to this server; `aliquot up --kubeconfig` serves a cluster",
            )
        issued = await self._issuer.issue(check_name(KINDS.of(Project), project), user, seconds)
        log.info("kubeconfig issued", to=caller.subject, user=user, project=project)
        answer = {
            "apiVersion": API_VERSION,
            "kind": "Kubeconfig",
            "user": user,
            "project": project,
            "namespace": issued.namespace,
            "expires": issued.expires,
            "kubeconfig": issued.kubeconfig,
        }
        response = json_response(answer, 201)
        response.headers["cache-control"] = "no-store"
        return response


def _parse_request(data: Json) -> tuple[str, int]:
    user, faults = data.get("user"), []
    if not isinstance(user, str) or not user:
        faults.append(Fault("user", "is required, as text"))
    try:
        seconds = units.duration(data.get("duration", DEFAULT_SECONDS))
    except (ValueError, OverflowError) as exc:
        seconds = DEFAULT_SECONDS
        faults.append(Fault("duration", str(exc)))
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        faults.append(Fault("duration", "must be from 10m to 365d"))
    faults += [Fault(key, "is not known here") for key in data if key not in ("user", "duration")]
    if faults:
        raise Invalid.because("kubeconfig", faults)
    return str(user), seconds
