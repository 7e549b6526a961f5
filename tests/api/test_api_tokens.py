"""Tokens and users: secrets are returned once or never, and users manage their own tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from api.accounts import CLUSTER, Accounts
from api.http_client import Api, Json, named, unique
from support.waiting import wait_until


def test_shown_once(api: Api) -> None:
    """Only the response to the create has the token."""
    name = unique("token")
    token = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    assert token.startswith(f"alq_{name}_")
    for response in (api.get(f"tokens/{name}"), api.get("tokens"), api.patch(f"tokens/{name}", {})):
        assert response.status == 200
        assert token.rpartition("_")[2].encode() not in response.raw


def test_works_at_once(api: Api) -> None:
    """A new token works at once."""
    for _ in range(5):
        token = api.post("tokens", named(unique("token"), {"user": "admin"})).ok(201)["token"]
        assert api.with_token(token).get("whoami").ok()["user"] == "admin"


def test_hash_is_never_shown(api: Api) -> None:
    """No read, write or watch returns the hash of a token."""
    name = unique("token")
    with api.watch("tokens") as stream:
        created = api.post("tokens", named(name, {"user": "admin"})).ok(201)
        seen = [stream.next()]
        seen.append(api.get(f"tokens/{name}").ok())
        seen.append(api.get("tokens").ok())
        seen.append(api.get(f"tokens/{name}/status").ok())
        seen.append(api.patch(f"tokens/{name}", {"spec": {"description": "x"}}).ok())
        seen.append(api.put(f"tokens/{name}", api.get(f"tokens/{name}").ok()).ok())
        seen.append(stream.next())
        seen.append(created)
    digest = hashlib.sha256(created["token"].rpartition("_")[2].encode()).hexdigest()
    text = json.dumps(seen)
    assert digest not in text
    assert '"hash"' not in text


def test_survives_read_change_write(api: Api) -> None:
    """A token that was read, changed and written back still works."""
    name = unique("token")
    token = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    seen = api.get(f"tokens/{name}").ok()
    api.put(f"tokens/{name}", {**seen, "spec": {**seen["spec"], "description": "laptop"}}).ok()
    wait_until(lambda: api.get(f"tokens/{name}").ok()["spec"].get("description") == "laptop", "the token's description")
    api.with_token(token).get("whoami").ok()


def test_hash_cannot_be_given(api: Api) -> None:
    """A client cannot choose the hash of a token."""
    name = unique("token")
    response = api.post("tokens", named(name, {"user": "admin", "hash": "0" * 64})).refused(400)
    assert "spec.hash" in response.faults
    api.get(f"tokens/{name}").refused(404)


def test_user_is_the_caller(accounts: Accounts) -> None:
    """A token without a user is for the caller."""
    ann = accounts.user()
    assert ann.api.post("tokens", named(unique("token"))).ok(201)["spec"]["user"] == ann.name


def test_own_token_without_any_role(accounts: Accounts) -> None:
    """A user without a role can create, read and delete own tokens."""
    ann, name = accounts.user(), unique("token")
    token = ann.api.post("tokens", named(name)).ok(201)["token"]
    assert accounts.with_token(token).get("whoami").ok()["user"] == ann.name
    assert ann.api.get(f"tokens/{name}").ok()["spec"]["user"] == ann.name
    assert name in ann.api.get("tokens").names
    ann.api.delete(f"tokens/{name}").ok()


def test_own_tokens_only(accounts: Accounts) -> None:
    """A list of tokens has only those of the caller."""
    ann, bob = accounts.user(), accounts.user("bob")
    bob.api.post("tokens", named(unique("token"))).ok(201)
    users = {item["spec"]["user"] for item in ann.api.get("tokens").ok()["items"]}
    assert users == {ann.name}


def test_token_of_another(accounts: Accounts) -> None:
    """Another user's token cannot be read, changed or deleted, and its existence is not revealed."""
    ann, bob, name = accounts.user(), accounts.user("bob"), unique("token")
    bob.api.post("tokens", named(name)).ok(201)
    for path in (f"tokens/{name}", "tokens/not-there"):
        ann.api.get(path).refused(403)
        ann.api.delete(path).refused(403)
        ann.api.patch(path, {"spec": {"user": ann.name}}).refused(403)
    accounts.admin.get(f"tokens/{name}").ok()


def test_own_token_cannot_be_changed(accounts: Accounts) -> None:
    """The owner of a token cannot change its user or its expiry."""
    ann, name = accounts.user(), unique("token")
    ann.api.post("tokens", named(name, {"expires": "2100-01-01T00:00:00Z"})).ok(201)
    ann.api.patch(f"tokens/{name}", {"spec": {"user": "admin"}}).refused(403)
    ann.api.patch(f"tokens/{name}", {"spec": {"expires": None}}).refused(403)


def test_deleted_at_once(api: Api) -> None:
    """A deleted token is refused at once."""
    for _ in range(10):
        name = unique("token")
        other = api.with_token(api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"])
        other.get("whoami").ok()
        api.delete(f"tokens/{name}").ok()
        other.get("whoami").refused(401)


def test_name_used_again(api: Api) -> None:
    """A new token with the name of a deleted one does not make the old one valid."""
    name = unique("token")
    old = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    api.delete(f"tokens/{name}").ok()
    new = api.post("tokens", named(name, {"user": "admin"})).ok(201)["token"]
    api.with_token(old).get("whoami").refused(401)
    api.with_token(new).get("whoami").ok()


def test_password_hash_is_never_shown(api: Api) -> None:
    """The password hash of a user is never returned."""
    name = unique("user")
    with api.watch("users", fieldSelector=f"metadata.name={name}") as stream:
        created = api.post("users", named(name, {"passwordHash": "scrypt$secret"})).ok(201)
        seen = [created, stream.next(), api.get(f"users/{name}").ok(), api.get("users").ok()]
        seen.append(api.patch(f"users/{name}", {"spec": {"firstName": "Ann"}}).ok())
        seen.append(stream.next())
    assert "scrypt$secret" not in json.dumps(seen)


def test_password_hash_is_kept(api: Api, stored_user: Callable[[str], Json]) -> None:
    """Reading a user and writing it back keeps the password hash."""
    name = unique("user")
    api.post("users", named(name, {"passwordHash": "scrypt$secret"})).ok(201)
    seen = api.get(f"users/{name}").ok()
    api.put(f"users/{name}", {**seen, "spec": {**seen["spec"], "firstName": "Ann"}}).ok()
    stored = stored_user(name)
    assert (stored["passwordHash"], stored["firstName"]) == ("scrypt$secret", "Ann")


def test_user_is_gone(accounts: Accounts) -> None:
    """A user whom a token or an access rule names cannot be deleted; after they are deleted it can."""
    ann = accounts.grant(accounts.user(), "viewer", CLUSTER)
    for name in ann.api.get("tokens").names:
        accounts.admin.delete(f"tokens/{name}").ok()
    accounts.admin.delete(f"users/{ann.name}").refused(409)
    for rule in accounts.admin.get("accessrules").ok()["items"]:
        if rule["spec"]["subject"]["name"] == ann.name:
            accounts.admin.delete(f"accessrules/{rule['metadata']['name']}").ok()
    accounts.admin.delete(f"users/{ann.name}").ok()
    ann.api.get("whoami").refused(401)
