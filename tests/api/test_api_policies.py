"""The server applies templates and policies, so they hold for every client."""

from __future__ import annotations

import pytest

from api.accounts import Accounts, project_path
from api.http_client import Api, Json, named, unique
from support.waiting import wait_until

FILLED_BY = "aliquot.dev/filled-by"


@pytest.fixture
def team(accounts: Accounts) -> str:
    """A project for one test, so that its templates and policies do not affect other tests."""
    return accounts.project()


def in_force(api: Api, team: str, **spec: object) -> None:
    """Creates a policy for a project and waits until it is in force, which a label in its defaults shows."""
    name, types = unique("policy"), list(spec.get("types") or ["training"])  # type: ignore[call-overload]
    defaults = {"labels": {"policy": name}, **dict(spec.pop("defaults", {}))}  # type: ignore[call-overload]
    api.post(f"{project_path(team)}/policies", named(name, {**spec, "defaults": defaults})).ok(201)

    def applies() -> bool:
        dry_run = api.post(
            f"{project_path(team)}/workloads?dryRun=All", named("probe", {"type": types[0], "image": "x"})
        )
        return dry_run.status == 422 or dry_run.ok(201)["spec"].get("labels", {}).get("policy") == name

    wait_until(applies, "the policy to be in force")


def job_document(**spec: object) -> Json:
    return named(unique("job"), {"image": "python", **spec})


def test_a_template_fills_in(api: Api, team: str) -> None:
    """A template fills in the fields that a workload leaves out, and an annotation lists them."""
    values = {"image": "ubuntu", "compute": {"gpu": 1, "cpu": 4}}
    api.post(f"{project_path(team)}/templates", named("big", {"values": values})).ok(201)
    given = named(unique("job"), {"template": "big", "compute": {"gpu": 2}})
    created = api.post(f"{project_path(team)}/workloads", given).ok(201)
    assert (created["spec"]["image"], created["spec"]["compute"]) == ("ubuntu", {"gpu": 2, "cpu": 4})
    assert created["metadata"]["annotations"][FILLED_BY] == f"template runai-{team}/big (compute.cpu, image)"


def test_a_template_is_applied_once(api: Api, team: str) -> None:
    """A later change of the template does not change the workload."""
    api.post(f"{project_path(team)}/templates", named("big", {"values": {"image": "ubuntu"}})).ok(201)
    created = api.post(f"{project_path(team)}/workloads", named(unique("job"), {"template": "big"})).ok(201)
    api.patch(f"{project_path(team)}/templates/big", {"spec": {"values": {"image": "busybox", "tty": True}}}).ok()
    path = f"{project_path(team)}/workloads/{created['metadata']['name']}"
    changed = api.patch(path, {"spec": {"description": "again"}}).ok()
    assert (changed["spec"]["image"], "tty" in changed["spec"]) == ("ubuntu", False)


def test_a_template_cannot_set_the_submitter(api: Api, team: str) -> None:
    """A template cannot set who submitted a workload or whether it is active."""
    values = {"image": "ubuntu", "subject": "somebody", "user": "else", "active": False}
    api.post(f"{project_path(team)}/templates", named("mask", {"values": values})).ok(201)
    created = api.post(f"{project_path(team)}/workloads", named(unique("job"), {"template": "mask"})).ok(201)
    assert (created["spec"]["subject"], created["spec"].get("user"), created["spec"].get("active")) == (
        "admin",
        None,
        None,
    )


def test_unknown_template(api: Api, team: str) -> None:
    """A workload that names a template that does not exist is refused."""
    refused = api.post(f"{project_path(team)}/workloads", job_document(template="nope")).refused(400)
    assert refused.faults == {"spec.template": "template 'nope' does not exist"}


def test_an_image_is_needed(api: Api, team: str) -> None:
    """A workload without an image is refused."""
    assert "spec.image" in api.post(f"{project_path(team)}/workloads", named(unique("job"))).refused(400).faults


def test_a_policy_bounds_every_client(api: Api, team: str) -> None:
    """A workload that exceeds a policy is refused with a message of one line."""
    in_force(api, team, types=["interactive"], rules={"compute.gpu": {"max": 4}})
    refused = api.post(f"{project_path(team)}/workloads", job_document(type="interactive", compute={"gpu": 5})).refused(
        422
    )
    assert refused.message == "gpu: must be no greater than 4"
    assert refused.faults == {"spec.compute.gpu": "must be no greater than 4"}
    api.post(f"{project_path(team)}/workloads", job_document(type="interactive", compute={"gpu": 4})).ok(201)
    api.post(f"{project_path(team)}/workloads", job_document(type="training", compute={"gpu": 5})).ok(201)


def test_a_policy_bounds_changes_too(api: Api, team: str) -> None:
    """An update cannot exceed the policy; a workload that is older than the policy can still be stopped."""
    before = api.post(f"{project_path(team)}/workloads", job_document(compute={"gpu": 8})).ok(201)["metadata"]["name"]
    in_force(api, team, rules={"compute.gpu": {"max": 4}})
    path = f"{project_path(team)}/workloads/{before}"
    api.patch(path, {"spec": {"active": False}}).ok()
    assert api.patch(path, {"spec": {"compute": {"gpu": 5}}}).refused(422).message == "gpu: must be no greater than 4"
    whole = api.get(path).ok()
    whole["spec"]["compute"]["gpu"] = 6
    api.put(path, whole).refused(422)
    api.patch(path, {"spec": {"compute": {"gpu": 3}}}).ok()


def test_a_policy_of_one_project(api: Api, accounts: Accounts, team: str) -> None:
    """A project's policy does not apply to other projects."""
    other = accounts.project()
    in_force(api, team, rules={"compute.gpu": {"max": 1}})
    api.post(f"{project_path(other)}/workloads", job_document(compute={"gpu": 2})).ok(201)
    api.post(f"{project_path(team)}/workloads", job_document(compute={"gpu": 2})).refused(422)


def test_several_violations(api: Api, team: str) -> None:
    """The message lists every violation in one line."""
    in_force(api, team, rules={"compute.cpu": {"max": 2}, "workingDir": {"required": True}})
    refused = api.post(f"{project_path(team)}/workloads", job_document(compute={"cpu": 3})).refused(422)
    assert refused.message == "cpu: must be no greater than 2; workingDir: is required"


def test_a_policy_that_fits_no_workload(api: Api, team: str) -> None:
    """A policy with a mistake is refused when it is created, not when a workload is submitted."""
    wrong: Json = {
        "defaults": {"imagine": "x"},
        "imposed": {"compute": {"gpu": 1.5}},
        "rules": {"compute.gpus": {"max": 4}},
    }
    refused = api.post(f"{project_path(team)}/policies", named("p", wrong)).refused(400)
    assert set(refused.faults) == {"spec.defaults.imagine", "spec.imposed.compute.gpu", "spec.rules['compute.gpus']"}


def test_dry_run(api: Api, team: str) -> None:
    """A dry run returns what would be stored, and stores nothing."""
    given = job_document(compute={"gpu": 1})
    created = api.post(f"{project_path(team)}/workloads?dryRun=All", given).ok(201)
    assert created["spec"]["compute"] == {"gpu": 1}
    assert api.get(f"{project_path(team)}/workloads").names == []
    api.post(f"{project_path(team)}/workloads", given).ok(201)
    api.post(f"{project_path(team)}/workloads?dryRun=All", given).refused(409, "AlreadyExists")


def test_an_unsupported_dry_run_changes_nothing(api: Api, team: str) -> None:
    """A dry run that is not supported is refused and changes nothing."""
    name = api.post(f"{project_path(team)}/workloads", job_document()).ok(201)["metadata"]["name"]
    path = f"{project_path(team)}/workloads/{name}"
    api.patch(f"{path}?dryRun=All", {"spec": {"tty": True}}).refused(400)
    api.delete(f"{path}?dryRun=All").refused(400)
    api.post("tokens?dryRun=All", named(unique("t"), {"user": "admin"})).refused(400)
    assert "tty" not in api.get(path).ok()["spec"]
