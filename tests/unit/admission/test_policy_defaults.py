"""What was given wins; templates and policies fill in the rest."""

from __future__ import annotations

from aliquot.admission.workload_defaults import changed_paths, with_defaults
from aliquot.admission.workload_policies import apply_policy, effective_policy
from aliquot.api import Json, Metadata, Policy
from aliquot.api.policy import DefaultFrom, FieldRule, PolicySpec


def policy(name: str = "p", **spec: object) -> Policy:
    return Policy(metadata=Metadata(name=name, namespace="runai"), spec=PolicySpec(**spec))  # type: ignore[arg-type]


def test_what_is_given_wins() -> None:
    """A template brings what a submission leaves out, field by field."""
    template: Json = {"image": "python", "compute": {"gpu": 1, "cpu": 4}}
    assert with_defaults({"compute": {"gpu": 2}}, template) == {"image": "python", "compute": {"gpu": 2, "cpu": 4}}


def test_variables_are_joined_by_name() -> None:
    """A list of named things is joined by name."""
    template: Json = {"environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
    given: Json = {"environment": [{"name": "B", "value": "2"}, {"name": "C", "value": "2"}]}
    values = {each["name"]: each["value"] for each in with_defaults(given, template)["environment"]}
    assert values == {"A": "1", "B": "2", "C": "2"}


def test_mounts_are_joined_by_path() -> None:
    """Two mounts at one path cannot be: the given one stays."""
    template: Json = {"storage": {"hostPath": [{"path": "/a", "mountPath": "/x"}, {"path": "/b", "mountPath": "/y"}]}}
    given: Json = {"storage": {"hostPath": [{"path": "/c", "mountPath": "/x"}]}}
    mounts = {each["mountPath"]: each["path"] for each in with_defaults(given, template)["storage"]["hostPath"]}
    assert mounts == {"/x": "/c", "/y": "/b"}


def test_one_can_be_left_out() -> None:
    """`exclude` leaves out what a template would add, and is gone itself."""
    template: Json = {"environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
    given: Json = {"environment": [{"name": "A", "exclude": True}]}
    assert with_defaults(given, template) == {"environment": [{"name": "B", "value": "1"}]}


def test_a_list_of_words_is_one_value() -> None:
    """Arguments are not mixed."""
    assert with_defaults({"args": ["--epochs=3"]}, {"args": ["-v", "-x"]}) == {"args": ["--epochs=3"]}


def test_one_way_to_ask_for_gpus() -> None:
    """Who asks for GPU memory does not get a template's number of GPUs as well."""
    assert with_defaults({"compute": {"gpuMemory": "4Gi"}}, {"compute": {"gpu": 0.5, "gpuDevices": 2, "cpu": 1}}) == {
        "compute": {"gpuMemory": "4Gi", "cpu": 1}
    }


def test_nothing_can_be_asked_for() -> None:
    """A null refuses what a template has."""
    assert with_defaults({"workingDir": None}, {"workingDir": "/w", "image": "x"}) == {"image": "x"}


def test_the_closest_default_wins() -> None:
    """A project's default goes before everybody's."""
    found = effective_policy([policy(defaults={"image": "a", "tty": True}), policy(defaults={"image": "b"})])
    assert apply_policy({}, found) == {"image": "b", "tty": True}


def test_imposed_values_win_over_all() -> None:
    """What a policy imposes every workload gets, beside what it was given."""
    found = effective_policy(
        [policy(imposed={"priorityClass": "train", "storage": {"pvc": [{"claimName": "l", "path": "/l"}]}})]
    )
    given: Json = {"priorityClass": "build", "storage": {"pvc": [{"claimName": "d", "path": "/d"}]}}
    spec = apply_policy(given, found)
    assert spec["priorityClass"] == "train"
    assert [each["path"] for each in spec["storage"]["pvc"]] == ["/d", "/l"]


def test_a_default_from_another_field() -> None:
    """Cores for each GPU, unless cores are given."""
    found = effective_policy(
        [policy(rules={"compute.cpu": FieldRule(default_from=DefaultFrom(field="compute.gpu", factor=6))})]
    )
    assert apply_policy({"compute": {"gpu": 0.5}}, found)["compute"] == {"gpu": 0.5, "cpu": 3}
    assert apply_policy({"compute": {"gpu": 1, "cpu": 1}}, found)["compute"] == {"gpu": 1, "cpu": 1}
    assert apply_policy({}, found) == {}


def test_what_was_filled_in_can_be_told() -> None:
    """Which fields did not come from the submission."""
    before: Json = {"compute": {"gpu": 1}, "image": "x"}
    after: Json = {"compute": {"gpu": 1, "cpu": 2}, "image": "x", "labels": {"a": "b"}, "args": ["-v"]}
    assert changed_paths(before, after) == ["compute.cpu", "labels.a", "args"]
