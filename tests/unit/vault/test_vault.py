"""The vault of a namespace: names, values, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from casemate.errors import InvalidArgument
from casemate.model.plan import Secrets
from casemate.policy.inject import Inject
from casemate.vault.store import EnvironmentStore, MemoryStore, VaultStore
from casemate.vault.vault import Vault, store_for

VALUE = "hunter2hunter2"


def vault(store: VaultStore, namespace: str = "default") -> Vault:
    return Vault(store, namespace, lambda *_: None, lambda _: None)


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD", "PYTHONSTARTUP", "BASH_ENV", "NODE_OPTIONS", "A=B", "PATH", "", "A\0B", "lower", "1A", "A B",
        "A\n", "Ä", "A/../B", "X" * 201, None, 7, b"A", "CASEMATE_OUTPUT", "ENV", "IFS", "PS4", "LC_ALL",
        "GIT_SSH_COMMAND",
    ],
)  # fmt: skip
def test_va_18_a_name_that_is_none_or_that_loaders_read_is_refused(name: object) -> None:
    one = vault(MemoryStore())
    with pytest.raises(InvalidArgument, match="name"):
        asyncio.run(one.set(name, VALUE))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="secrets"):
        one.resolve((name,))


@pytest.mark.parametrize("name", ["TOKEN", "_T", "API_KEY_2", "NPM_TOKEN", "NODE_AUTH_TOKEN", "GITHUB_TOKEN", "T"])
def test_a_plain_name_may_be_a_secrets(name: str) -> None:
    one = vault(MemoryStore())
    asyncio.run(one.set(name, VALUE))
    assert one.resolve([name]).reveal() == {name: VALUE}
    assert asyncio.run(one.names()) == (name,)


@pytest.mark.parametrize("value", ["", "yes", "1234567", "       x       ", "é1234"])
def test_va_09_a_value_that_innocent_text_may_hold_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match="too short") as refused:
        asyncio.run(vault(MemoryStore()).set("TOKEN", value))
    assert not value.strip() or value not in str(refused.value)


@pytest.mark.parametrize(
    "value", [b"hunter2hunter2", None, 12345678, "hunter2\0hunter2", "hunter2\ud800hunter2", "x" * 17_000]
)
def test_a_value_that_no_variable_can_hold_is_refused_and_not_told(value: object) -> None:
    with pytest.raises(InvalidArgument, match="value") as refused:
        asyncio.run(vault(MemoryStore()).set("TOKEN", value))  # type: ignore[arg-type]
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("kind", ["memory", "environment"])
@pytest.mark.parametrize("asks", ["b", "A", "a_b", "a/../a", "", "a ", "default"])
def test_va_12_what_is_anothers_is_told_from_what_is_nobodys_by_nothing(kind: str, asks: str) -> None:
    environ = {"CASEMATE_SECRET_A_TOKEN": VALUE, "CASEMATE_SECRET_A_B_TOKEN": VALUE}
    store: VaultStore = EnvironmentStore(environ) if kind == "environment" else MemoryStore()
    if kind == "memory":
        asyncio.run(vault(store, "a").set("TOKEN", VALUE))
    assert vault(store, "a").resolve(["TOKEN"]).names == ("TOKEN",)
    stranger = vault(store, asks)
    assert asyncio.run(stranger.names()) == ()
    told = []
    for name in ("TOKEN", "NOBODY"):
        with pytest.raises(InvalidArgument) as refused:
            stranger.resolve([name])
        with pytest.raises(InvalidArgument) as undeleted:
            asyncio.run(stranger.delete(name))
        told.append((str(refused.value).replace(name, ""), str(undeleted.value).replace(name, "")))
    assert told[0] == told[1]
    assert vault(store, "a").resolve(["TOKEN"]).names == ("TOKEN",)


def test_a_secret_of_the_environment_is_read_and_hidden_but_not_changed() -> None:
    environ = {"CASEMATE_SECRET_DEFAULT_TOKEN": VALUE, "CASEMATE_SECRET_DEFAULT__KEY": VALUE, "TOKEN": "other-value"}
    one = vault(store_for(None, environ))
    assert asyncio.run(one.names()) == ("TOKEN", "_KEY")
    asyncio.run(one.set("TOKEN", "another-value"))
    assert one.resolve(["TOKEN"]).reveal() == {"TOKEN": "another-value"}
    asyncio.run(one.delete("TOKEN"))
    assert one.resolve(["TOKEN"]).reveal() == {"TOKEN": VALUE}
    with pytest.raises(InvalidArgument, match="variable of the host"):
        asyncio.run(one.delete("TOKEN"))


def test_va_09_a_short_secret_of_the_environment_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(InvalidArgument, match="secrets: is too short for TOKEN"):
        vault(EnvironmentStore({"CASEMATE_SECRET_DEFAULT_TOKEN": "yes"})).resolve(["TOKEN"])


def test_what_is_set_again_is_replaced_and_what_is_deleted_is_gone() -> None:
    one = vault(MemoryStore())
    for value in (VALUE, "another-value"):
        asyncio.run(one.set("TOKEN", value))
    assert one.resolve(["TOKEN"]).reveal() == {"TOKEN": "another-value"}
    asyncio.run(one.delete("TOKEN"))
    with pytest.raises(InvalidArgument, match="no secret TOKEN"):
        one.resolve(["TOKEN"])


@pytest.mark.parametrize("names", ["TOKEN", b"TOKEN", 7, {"TOKEN": 1}, None])
def test_what_is_no_list_of_names_is_refused(names: object) -> None:
    with pytest.raises(InvalidArgument, match="secrets"):
        vault(MemoryStore()).resolve(names)


@pytest.mark.parametrize("kind", ["memory", "layered", "environment"])
def test_a_secret_that_only_the_egress_proxy_puts_in_is_a_placeholder_to_a_program(kind: str) -> None:
    inject = Inject(["api.example.org"], "X-Api-Key", "{}")
    environ = {
        "CASEMATE_SECRET_DEFAULT_TOKEN": VALUE,
        "CASEMATE_INJECT_DEFAULT_TOKEN": '{"hosts": ["api.example.org"], "header": "X-Api-Key", "format": "{}"}',
    }
    stores: dict[str, VaultStore] = {
        "memory": MemoryStore(), "layered": store_for(None, {}), "environment": EnvironmentStore(environ)
    }  # fmt: skip
    one = vault(stores[kind])
    if kind != "environment":
        asyncio.run(one.set("TOKEN", VALUE, inject=inject))
        asyncio.run(one.set("OTHER", "another-value"))
    assert asyncio.run(one.injects())["TOKEN"] == inject
    first, second = one.resolve(["TOKEN"]), one.resolve(["TOKEN"])
    assert first.reveal() == {"TOKEN": VALUE}
    (given,), (again,) = first.for_program().reveal().values(), second.for_program().reveal().values()
    assert VALUE not in (given, again)
    assert given != again
    (placeholder,) = first.placeholders
    assert (placeholder.text, placeholder.value, placeholder.header) == (given, VALUE, "x-api-key")
    assert placeholder.places == {("api.example.org", 443)}
    assert VALUE not in repr((first, placeholder, first.for_program()))


def test_a_secret_without_a_rule_is_the_programs_as_ever() -> None:
    one = vault(MemoryStore())
    asyncio.run(one.set("TOKEN", VALUE, inject=Inject(["api.example.org"])))
    asyncio.run(one.set("TOKEN", VALUE))
    held = one.resolve(["TOKEN"])
    assert (held.placeholders, held.for_program().reveal()) == ((), {"TOKEN": VALUE})
    assert asyncio.run(one.injects()) == {"TOKEN": None}


@pytest.mark.parametrize("inject", [object(), "api.example.org", {"hosts": ["api.example.org"]}, Inject])
def test_what_is_no_rule_for_injection_is_refused(inject: object) -> None:
    one = vault(MemoryStore())
    with pytest.raises(InvalidArgument, match="inject"):
        asyncio.run(one.set("TOKEN", VALUE, inject=inject))  # type: ignore[arg-type]
    assert asyncio.run(one.names()) == ()


@pytest.mark.parametrize(
    "value", ["hunter2\r\nX: y", "hunter2hünter2", " hunter2hunter2", "hunter2\thunter2", "h" * 5000]
)
def test_a_value_that_no_header_can_hold_is_not_for_the_egress_proxy(value: str) -> None:
    with pytest.raises(InvalidArgument, match="header") as refused:
        asyncio.run(vault(MemoryStore()).set("TOKEN", value, inject=Inject(["api.example.org"])))
    assert "unter2" not in str(refused.value)


@pytest.mark.parametrize(
    "where", ["", "api.example.org", "{}", "[" * 100_000, '{"hosts": ["*.example.org"]}', '{"hosts": []}']
)
def test_a_variable_that_does_not_say_where_a_secret_may_go_gives_no_program_its_value(where: str) -> None:
    environ = {"CASEMATE_SECRET_DEFAULT_TOKEN": VALUE, "CASEMATE_INJECT_DEFAULT_TOKEN": where}
    with pytest.raises(InvalidArgument, match="CASEMATE_INJECT_") as refused:
        vault(EnvironmentStore(environ)).resolve(["TOKEN"])
    assert VALUE not in str(refused.value)


def test_the_record_says_where_a_secret_may_go() -> None:
    rows: list[Mapping[str, object]] = []
    one = Vault(MemoryStore(), "default", lambda _run, _namespace, detail: rows.append(detail), lambda _: None)
    inject = Inject(["api.example.org"])
    asyncio.run(one.set("TOKEN", VALUE, inject=inject))
    assert rows == [{"action": "set", "name": "TOKEN", "done": True, "inject": inject.as_json()}]


def test_changes_are_noted_without_their_values() -> None:
    rows: list[Mapping[str, object]] = []
    one = Vault(MemoryStore(), "default", lambda _run, _namespace, detail: rows.append(detail), lambda _: None)
    asyncio.run(one.set("TOKEN", VALUE))
    asyncio.run(one.delete("TOKEN"))
    assert [(row["action"], row["name"]) for row in rows] == [("set", "TOKEN"), ("delete", "TOKEN")]
    assert VALUE not in str(rows)


def test_secrets_show_their_names_only() -> None:
    secrets = Secrets({"TOKEN": VALUE})
    assert (repr(secrets), secrets.names, bool(secrets)) == ("Secrets(TOKEN)", ("TOKEN",), True)
    assert "hunter2" not in repr([secrets])


@pytest.mark.parametrize("given", [7, object(), b"x", "", "a\0b"])
def test_a_vault_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match="vault"):
        store_for(given, {})
