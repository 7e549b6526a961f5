"""Templates and policies fill in the fields that a submission leaves out."""

from __future__ import annotations

from aliquot.admission.workload_defaults import changed_paths, with_defaults
from aliquot.admission.workload_policies import apply_policy, effective_policy
from aliquot.api import Json, Metadata, Policy
from aliquot.api.policy import DefaultFrom, FieldRule, PolicySpec


def policy(name: str = "p", **spec: object) -> Policy:
    return Policy(metadata=Metadata(name=name, namespace="runai"), spec=PolicySpec(**spec))  # type: ignore[arg-type]


def test_the_submission_wins() -> None:
    """A template fills in missing fields one by one; values of the submission win."""
    template: Json = {"image": "python", "compute": {"gpu": 1, "cpu": 4}}
    assert with_defaults({"compute": {"gpu": 2}}, template) == {"image": "python", "compute": {"gpu": 2, "cpu": 4}}


def test_variables_merge_by_name() -> None:
    """Lists of named items merge by name."""
    template: Json = {"environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
    given: Json = {"environment": [{"name": "B", "value": "2"}, {"name": "C", "value": "2"}]}
    values = {item["name"]: item["value"] for item in with_defaults(given, template)["environment"]}
    assert values == {"A": "1", "B": "2", "C": "2"}


def test_mounts_merge_by_path() -> None:
    """Mounts merge by path; the mount of the submission wins."""
    template: Json = {"storage": {"hostPath": [{"path": "/a", "mountPath": "/x"}, {"path": "/b", "mountPath": "/y"}]}}
    given: Json = {"storage": {"hostPath": [{"path": "/c", "mountPath": "/x"}]}}
    mounts = {item["mountPath"]: item["path"] for item in with_defaults(given, template)["storage"]["hostPath"]}
    assert mounts == {"/x": "/c", "/y": "/b"}


def test_an_item_can_be_excluded() -> None:
    """An item with `exclude` removes the item of the template, and is removed itself."""
    template: Json = {"environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
    given: Json = {"environment": [{"name": "A", "exclude": True}]}
    assert with_defaults(given, template) == {"environment": [{"name": "B", "value": "1"}]}


def test_a_list_of_strings_is_one_value() -> None:
    """A list of strings is replaced as a whole."""
    assert with_defaults({"args": ["--epochs=3"]}, {"args": ["-v", "-x"]}) == {"args": ["--epochs=3"]}


def test_only_one_gpu_request() -> None:
    """A submission that requests GPU memory does not also get the template's number of GPUs."""
    assert with_defaults({"compute": {"gpuMemory": "4Gi"}}, {"compute": {"gpu": 0.5, "gpuDevices": 2, "cpu": 1}}) == {
        "compute": {"gpuMemory": "4Gi", "cpu": 1}
    }


def test_null_removes_a_default() -> None:
    """A null in the submission removes the template's value."""
    assert with_defaults({"workingDir": None}, {"workingDir": "/w", "image": "x"}) == {"image": "x"}


def test_the_closest_default_wins() -> None:
    """A project's default overrides the cluster's."""
    effective = effective_policy([policy(defaults={"image": "a", "tty": True}), policy(defaults={"image": "b"})])
    assert apply_policy({}, effective) == {"image": "b", "tty": True}


def test_imposed_values_win_over_all() -> None:
    """Imposed values override the submission, and imposed list items are added."""
    effective = effective_policy(
        [policy(imposed={"priorityClass": "train", "storage": {"pvc": [{"claimName": "l", "path": "/l"}]}})]
    )
    given: Json = {"priorityClass": "build", "storage": {"pvc": [{"claimName": "d", "path": "/d"}]}}
    spec = apply_policy(given, effective)
    assert spec["priorityClass"] == "train"
    assert [item["path"] for item in spec["storage"]["pvc"]] == ["/d", "/l"]


def test_a_default_from_another_field() -> None:
    """A default can be computed from another field, unless the submission sets the field."""
    effective = effective_policy(
        [policy(rules={"compute.cpu": FieldRule(default_from=DefaultFrom(field="compute.gpu", factor=6))})]
    )
    assert apply_policy({"compute": {"gpu": 0.5}}, effective)["compute"] == {"gpu": 0.5, "cpu": 3}
    assert apply_policy({"compute": {"gpu": 1, "cpu": 1}}, effective)["compute"] == {"gpu": 1, "cpu": 1}
    assert apply_policy({}, effective) == {}


def test_changed_paths() -> None:
    """changed_paths lists the fields that were filled in."""
    before: Json = {"compute": {"gpu": 1}, "image": "x"}
    after: Json = {"compute": {"gpu": 1, "cpu": 2}, "image": "x", "labels": {"a": "b"}, "args": ["-v"]}
    assert changed_paths(before, after) == ["compute.cpu", "labels.a", "args"]
