"""Templates and policies hold for every client, because the server applies them."""

from __future__ import annotations

import pytest

from api.people import Office, space
from api.wire import Api, Json, named, unique, until

FILLED_BY = "aliquot.dev/filled-by"


@pytest.fixture
def team(office: Office) -> str:
    """A project of its own, so that its templates and policies bother nobody else."""
    return office.project()


def in_force(api: Api, team: str, **spec: object) -> None:
    """A policy for a project, known to the server when this returns: it marks what it fills in."""
    name, types = unique("policy"), list(spec.get("types") or ["training"])  # type: ignore[call-overload]
    defaults = {"labels": {"policy": name}, **dict(spec.pop("defaults", {}))}  # type: ignore[call-overload]
    api.post(f"{space(team)}/policies", named(name, {**spec, "defaults": defaults})).ok(201)

    def marks() -> bool:
        tried = api.post(f"{space(team)}/workloads?dryRun=All", named("probe", {"type": types[0], "image": "x"}))
        return tried.status == 422 or tried.ok(201)["spec"].get("labels", {}).get("policy") == name

    until(marks, "the policy to be in force")


def job(**spec: object) -> Json:
    return named(unique("job"), {"image": "python", **spec})


def test_a_template_fills_in(api: Api, team: str) -> None:
    """What a workload leaves out comes from the template it names, and which fields those were is noted."""
    values = {"image": "ubuntu", "compute": {"gpu": 1, "cpu": 4}}
    api.post(f"{space(team)}/templates", named("big", {"values": values})).ok(201)
    given = named(unique("job"), {"template": "big", "compute": {"gpu": 2}})
    made = api.post(f"{space(team)}/workloads", given).ok(201)
    assert (made["spec"]["image"], made["spec"]["compute"]) == ("ubuntu", {"gpu": 2, "cpu": 4})
    assert made["metadata"]["annotations"][FILLED_BY] == f"template runai-{team}/big (compute.cpu, image)"


def test_a_template_is_applied_once(api: Api, team: str) -> None:
    """A workload is what it was when it was made, whatever becomes of its template."""
    api.post(f"{space(team)}/templates", named("big", {"values": {"image": "ubuntu"}})).ok(201)
    made = api.post(f"{space(team)}/workloads", named(unique("job"), {"template": "big"})).ok(201)
    api.patch(f"{space(team)}/templates/big", {"spec": {"values": {"image": "busybox", "tty": True}}}).ok()
    path = f"{space(team)}/workloads/{made['metadata']['name']}"
    changed = api.patch(path, {"spec": {"description": "again"}}).ok()
    assert (changed["spec"]["image"], "tty" in changed["spec"]) == ("ubuntu", False)


def test_a_template_speaks_for_nobody(api: Api, team: str) -> None:
    """Who submitted a workload, and whether it is to run, is not a template's to say."""
    values = {"image": "ubuntu", "subject": "somebody", "user": "else", "active": False}
    api.post(f"{space(team)}/templates", named("mask", {"values": values})).ok(201)
    made = api.post(f"{space(team)}/workloads", named(unique("job"), {"template": "mask"})).ok(201)
    assert (made["spec"]["subject"], made["spec"].get("user"), made["spec"].get("active")) == ("admin", None, None)


def test_unknown_template(api: Api, team: str) -> None:
    """A template that does not exist is named."""
    refused = api.post(f"{space(team)}/workloads", job(template="nope")).refused(400)
    assert refused.faults == {"spec.template": "template 'nope' does not exist"}


def test_an_image_is_needed(api: Api, team: str) -> None:
    """What nothing can run is not taken."""
    assert "spec.image" in api.post(f"{space(team)}/workloads", named(unique("job"))).refused(400).faults


def test_a_policy_bounds_every_client(api: Api, team: str) -> None:
    """More than the policy allows is refused in one line."""
    in_force(api, team, types=["interactive"], rules={"compute.gpu": {"max": 4}})
    refused = api.post(f"{space(team)}/workloads", job(type="interactive", compute={"gpu": 5})).refused(422)
    assert refused.message == "gpu: must be no greater than 4"
    assert refused.faults == {"spec.compute.gpu": "must be no greater than 4"}
    api.post(f"{space(team)}/workloads", job(type="interactive", compute={"gpu": 4})).ok(201)
    api.post(f"{space(team)}/workloads", job(type="training", compute={"gpu": 5})).ok(201)


def test_a_policy_bounds_changes_too(api: Api, team: str) -> None:
    """Nobody gets by a change what he could not get at first; what was there before can still be stopped."""
    before = api.post(f"{space(team)}/workloads", job(compute={"gpu": 8})).ok(201)["metadata"]["name"]
    in_force(api, team, rules={"compute.gpu": {"max": 4}})
    path = f"{space(team)}/workloads/{before}"
    api.patch(path, {"spec": {"active": False}}).ok()
    assert api.patch(path, {"spec": {"compute": {"gpu": 5}}}).refused(422).message == "gpu: must be no greater than 4"
    whole = api.get(path).ok()
    whole["spec"]["compute"]["gpu"] = 6
    api.put(path, whole).refused(422)
    api.patch(path, {"spec": {"compute": {"gpu": 3}}}).ok()


def test_a_policy_of_one_project(api: Api, office: Office, team: str) -> None:
    """A project's policy is nobody else's."""
    other = office.project()
    in_force(api, team, rules={"compute.gpu": {"max": 1}})
    api.post(f"{space(other)}/workloads", job(compute={"gpu": 2})).ok(201)
    api.post(f"{space(team)}/workloads", job(compute={"gpu": 2})).refused(422)


def test_several_violations(api: Api, team: str) -> None:
    """Each is named, in one line."""
    in_force(api, team, rules={"compute.cpu": {"max": 2}, "workingDir": {"required": True}})
    refused = api.post(f"{space(team)}/workloads", job(compute={"cpu": 3})).refused(422)
    assert refused.message == "cpu: must be no greater than 2; workingDir: is required"


def test_a_policy_that_fits_no_workload(api: Api, team: str) -> None:
    """A slip in a policy is refused when it is written, not when somebody submits."""
    wrong: Json = {
        "defaults": {"imagine": "x"},
        "imposed": {"compute": {"gpu": 1.5}},
        "rules": {"compute.gpus": {"max": 4}},
    }
    refused = api.post(f"{space(team)}/policies", named("p", wrong)).refused(400)
    assert set(refused.faults) == {"spec.defaults.imagine", "spec.imposed.compute.gpu", "spec.rules['compute.gpus']"}


def test_dry_run(api: Api, team: str) -> None:
    """A dry run shows what would be stored, and stores nothing."""
    given = job(compute={"gpu": 1})
    made = api.post(f"{space(team)}/workloads?dryRun=All", given).ok(201)
    assert made["spec"]["compute"] == {"gpu": 1}
    assert api.get(f"{space(team)}/workloads").names == []
    api.post(f"{space(team)}/workloads", given).ok(201)
    api.post(f"{space(team)}/workloads?dryRun=All", given).refused(409, "AlreadyExists")


def test_a_dry_run_never_does_it(api: Api, team: str) -> None:
    """Where a dry run is not possible nothing happens instead."""
    name = api.post(f"{space(team)}/workloads", job()).ok(201)["metadata"]["name"]
    path = f"{space(team)}/workloads/{name}"
    api.patch(f"{path}?dryRun=All", {"spec": {"tty": True}}).refused(400)
    api.delete(f"{path}?dryRun=All").refused(400)
    api.post("tokens?dryRun=All", named(unique("t"), {"user": "admin"})).refused(400)
    assert "tty" not in api.get(path).ok()["spec"]
