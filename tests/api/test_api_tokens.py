"""Tokens and users: secrets are shown once or never, and everybody looks after his own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from api.people import CLUSTER, Office
from api.wire import Api, Json, named, unique, until


def test_shown_once(api: Api) -> None:
    """The answer to the create is the only one with the token in it."""
    name = unique("token")
    token = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    assert token.startswith(f"alq_{name}_")
    for answer in (api.get(f"tokens/{name}"), api.get("tokens"), api.patch(f"tokens/{name}", {})):
        assert answer.status == 200
        assert token.rpartition("_")[2].encode() not in answer.raw


def test_works_at_once(api: Api) -> None:
    """A new token works with the very next request."""
    for _ in range(5):
        token = api.post("tokens", named(unique("token"), {"user": "admin"})).ok(201)["token"]
        assert api.bearing(token).get("whoami").ok()["user"] == "admin"


def test_hash_is_never_shown(api: Api) -> None:
    """Not even the hash of a token leaves the server: by no read, write or watch."""
    name = unique("token")
    with api.watch("tokens") as stream:
        made = api.post("tokens", named(name, {"user": "admin"})).ok(201)
        seen = [stream.next()]
        seen.append(api.get(f"tokens/{name}").ok())
        seen.append(api.get("tokens").ok())
        seen.append(api.get(f"tokens/{name}/status").ok())
        seen.append(api.patch(f"tokens/{name}", {"spec": {"description": "x"}}).ok())
        seen.append(api.put(f"tokens/{name}", api.get(f"tokens/{name}").ok()).ok())
        seen.append(stream.next())
        seen.append(made)
    digest = hashlib.sha256(made["token"].rpartition("_")[2].encode()).hexdigest()
    text = json.dumps(seen)
    assert digest not in text
    assert '"hash"' not in text


def test_survives_read_change_write(api: Api) -> None:
    """A token that was read, changed and written back still works."""
    name = unique("token")
    token = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    seen = api.get(f"tokens/{name}").ok()
    api.put(f"tokens/{name}", {**seen, "spec": {**seen["spec"], "description": "laptop"}}).ok()
    until(lambda: api.get(f"tokens/{name}").ok()["spec"].get("description") == "laptop")
    api.bearing(token).get("whoami").ok()


def test_hash_cannot_be_given(api: Api) -> None:
    """Nobody brings a secret of his own choice."""
    name = unique("token")
    answer = api.post("tokens", named(name, {"user": "admin", "hash": "0" * 64})).refused(400)
    assert "spec.hash" in answer.faults
    api.get(f"tokens/{name}").refused(404)


def test_user_is_the_caller(office: Office) -> None:
    """Who names no user gets a token for himself."""
    ann = office.person()
    assert ann.api.post("tokens", named(unique("token"))).ok(201)["spec"]["user"] == ann.name


def test_own_token_without_any_role(office: Office) -> None:
    """Everybody makes, sees and deletes tokens of his own."""
    ann, name = office.person(), unique("token")
    token = ann.api.post("tokens", named(name)).ok(201)["token"]
    assert office.bearing(token).get("whoami").ok()["user"] == ann.name
    assert ann.api.get(f"tokens/{name}").ok()["spec"]["user"] == ann.name
    assert name in ann.api.get("tokens").names
    ann.api.delete(f"tokens/{name}").ok()


def test_own_tokens_only(office: Office) -> None:
    """A list shows nobody else's."""
    ann, bob = office.person(), office.person("bob")
    bob.api.post("tokens", named(unique("token"))).ok(201)
    users = {item["spec"]["user"] for item in ann.api.get("tokens").ok()["items"]}
    assert users == {ann.name}


def test_token_of_another(office: Office) -> None:
    """Another one's token can be neither read, changed, deleted, nor found out about."""
    ann, bob, name = office.person(), office.person("bob"), unique("token")
    bob.api.post("tokens", named(name)).ok(201)
    for path in (f"tokens/{name}", "tokens/not-there"):
        ann.api.get(path).refused(403)
        ann.api.delete(path).refused(403)
        ann.api.patch(path, {"spec": {"user": ann.name}}).refused(403)
    office.admin.get(f"tokens/{name}").ok()


def test_own_token_cannot_be_changed(office: Office) -> None:
    """Not even its owner makes a token speak for another, or last longer."""
    ann, name = office.person(), unique("token")
    ann.api.post("tokens", named(name, {"expires": "2100-01-01T00:00:00Z"})).ok(201)
    ann.api.patch(f"tokens/{name}", {"spec": {"user": "admin"}}).refused(403)
    ann.api.patch(f"tokens/{name}", {"spec": {"expires": None}}).refused(403)


def test_deleted_at_once(api: Api) -> None:
    """A deleted token is refused with the very next request."""
    for _ in range(10):
        name = unique("token")
        other = api.bearing(api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"])
        other.get("whoami").ok()
        api.delete(f"tokens/{name}").ok()
        other.get("whoami").refused(401)


def test_name_used_again(api: Api) -> None:
    """A new token of an old name does not bring the old one back."""
    name = unique("token")
    old = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    api.delete(f"tokens/{name}").ok()
    new = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    api.bearing(old).get("whoami").refused(401)
    api.bearing(new).get("whoami").ok()


def test_password_hash_is_never_shown(api: Api) -> None:
    """A user's password hash is written and never read."""
    name = unique("user")
    with api.watch("users", fieldSelector=f"metadata.name={name}") as stream:
        made = api.post("users", named(name, {"passwordHash": "scrypt$secret"})).ok(201)
        seen = [made, stream.next(), api.get(f"users/{name}").ok(), api.get("users").ok()]
        seen.append(api.patch(f"users/{name}", {"spec": {"firstName": "Ann"}}).ok())
        seen.append(stream.next())
    assert "scrypt$secret" not in json.dumps(seen)


def test_password_hash_is_kept(api: Api, stored_user: Callable[[str], Json]) -> None:
    """Read, change and write back does not lose the password."""
    name = unique("user")
    api.post("users", named(name, {"passwordHash": "scrypt$secret"})).ok(201)
    seen = api.get(f"users/{name}").ok()
    api.put(f"users/{name}", {**seen, "spec": {**seen["spec"], "firstName": "Ann"}}).ok()
    stored = stored_user(name)
    assert (stored["passwordHash"], stored["firstName"]) == ("scrypt$secret", "Ann")


def test_user_is_gone(office: Office) -> None:
    """A user whom a token or a rule names stays; without them he goes, and his token with him."""
    ann = office.grant(office.person(), "viewer", CLUSTER)
    for name in ann.api.get("tokens").names:
        office.admin.delete(f"tokens/{name}").ok()
    office.admin.delete(f"users/{ann.name}").refused(409)
    for rule in office.admin.get("accessrules").ok()["items"]:
        if rule["spec"]["subject"]["name"] == ann.name:
            office.admin.delete(f"accessrules/{rule['metadata']['name']}").ok()
    office.admin.delete(f"users/{ann.name}").ok()
    ann.api.get("whoami").refused(401)
