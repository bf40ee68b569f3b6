"""Definitions of servers: read strictly, and filled in from nowhere but the vault and what was allowed by name."""

from __future__ import annotations

from typing import Any

import pytest

from casemate.errors import InvalidArgument
from casemate.tools.connections.connection import RestartBackoff
from casemate.tools.connections.definition import (
    Expansion,
    Program,
    RemoteServer,
    ServerWall,
    SignIn,
    read_definition,
    read_servers,
)
from casemate.tools.connections.streams import MessageBudget


@pytest.mark.parametrize(
    ("given", "how"),
    [
        ({"command": "npx", "args": ["-y", "x"]}, Program("npx", ("-y", "x"))),
        ({"type": "stdio", "command": "x", "env": {"A": "${B}"}, "cwd": "/w"}, Program("x", (), {"A": "${B}"}, "/w")),
        ({"command": "x", "wall": True}, Program("x", wall=ServerWall())),
        (
            {"command": "x", "read": ["r"], "copy": ["~/.npm"]},
            Program("x", wall=ServerWall(read=("r",), copy=("~/.npm",))),
        ),
        ({"command": "x", "policy": "p.yaml"}, Program("x", wall=ServerWall(policy="p.yaml"))),
        ({"command": "x", "wall": True, "settings": "s.json"}, Program("x", wall=ServerWall(settings="s.json"))),
        ({"url": "https://a.test/mcp"}, RemoteServer("https://a.test/mcp")),
        ({"url": "https://a.test/s", "type": "sse"}, RemoteServer("https://a.test/s", "sse")),
        ({"url": "https://${HOST}/", "type": "streamable-http"}, RemoteServer("https://${HOST}/")),
        ({"url": "https://${HOST}/", "type": "streamable_http"}, RemoteServer("https://${HOST}/")),
        ({"url": "https://a.test", "headers": {"X-A": "b"}}, RemoteServer("https://a.test", "http", {"X-A": "b"})),
        ({"url": "https://a.test", "addresses": "public"}, RemoteServer("https://a.test", addresses="public")),
        ({"url": "https://a.test", "addresses": ["::1"]}, RemoteServer("https://a.test", addresses=("::1",))),
        (
            {"url": "https://a.test", "auth": "oauth"},
            RemoteServer("https://a.test", sign_in=SignIn("authorization_code")),
        ),
        (
            {"url": "https://a.test", "auth": {"type": "device"}},
            RemoteServer("https://a.test", sign_in=SignIn("device")),
        ),
    ],
)
def test_a_definition_says_how_a_server_is_reached(given: dict[str, Any], how: Program | RemoteServer) -> None:
    assert read_definition("own", given).how == how


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, "either 'command'"),
        ({"command": "x", "url": "https://a.test"}, "either 'command'"),
        ({"command": "x", "autoApprove": []}, "'autoApprove'"),
        ({"command": "x", "headers": {}}, "'headers'"),
        ({"url": "https://a.test", "env": {}}, "'env'"),
        ({"command": "x", "wall": False, "copy": ["c"]}, "own.wall"),
        ({"url": "https://a.test", "addresses": ["a.test"]}, "'a.test' is not an IP address"),
        ({"url": "https://a.test", "addresses": []}, "addresses: is empty"),
        ({"url": "https://a.test", "addresses": "private"}, "own.addresses"),
        ({"command": ""}, "own.command"),
        ({"command": "${X}"}, "own.command"),
        ({"command": "x", "args": "a b"}, "own.args"),
        ({"command": "x", "args": [1]}, "own.args"),
        ({"command": "x", "args": ["a\0b"]}, "own.args"),
        ({"command": "x", "args": ["${input:key}"]}, "own.args"),
        ({"command": "x", "args": ["${A"]}, "own.args"),
        ({"command": "x", "env": {"A=B": "x"}}, "own.env"),
        ({"command": "x", "env": {"A": 1}}, "own.env"),
        ({"command": "x", "wall": "yes"}, "own.wall"),
        ({"command": "x", "wall": True, "env": {"LD_PRELOAD": "/x"}}, "own.env"),
        ({"command": "x", "wall": False, "policy": "p"}, "own.wall"),
        ({"command": "x", "policy": "p", "settings": "s"}, "own.settings"),
        ({"command": "x", "timeout": 0}, "own.timeout"),
        ({"command": "x", "timeout": True}, "own.timeout"),
        ({"command": "x", "connect_timeout": float("nan")}, "own.connect_timeout"),
        ({"command": "x", "variables": ["A B"]}, "own.variables"),
        ({"command": "x", "type": "http"}, "own.type"),
        ({"url": "https://a.test", "type": "ws"}, "own.type"),
        ({"url": "ftp://a.test"}, "own.url"),
        ({"url": "https://user:pw@a.test"}, "holds credentials"),
        ({"url": "/mcp"}, "own.url"),
        ({"url": "https://a.test", "headers": {"Host": "b.test"}}, "own.headers"),
        ({"url": "https://a.test", "headers": {"A B": "c"}}, "own.headers"),
        ({"url": "https://a.test", "headers": {"authorization": "c"}, "auth": "oauth"}, "own.headers"),
        ({"url": "https://a.test", "auth": {"type": "password"}}, "own.auth.type"),
        ({"url": "https://a.test", "auth": {"type": "client_credentials"}}, "client_id, client_secret, issuer"),
        ({"url": "https://a.test", "auth": {"type": "device", "redirect_port": -1}}, "redirect_port"),
        ("npx", "own"),
    ],
)
def test_what_is_no_definition_is_named(given: Any, names: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        read_definition("own", given)
    assert names in str(error.value)
    assert "pw" not in str(error.value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\0", "ä", "x" * 65, "a\n", 7, None])
def test_a_name_that_is_none_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgument, match="is not a server name"):
        read_definition(name, {"command": "x"})


def test_a_whole_configuration_is_read() -> None:
    servers = read_servers({"mcpServers": {"a": {"command": "x"}, "B-2": {"url": "https://b.test"}}})
    assert list(servers) == ["a", "B-2"]
    with pytest.raises(InvalidArgument, match="unknown key 'servers'"):
        read_servers({"servers": {}})


def expansion_of() -> Expansion:
    secrets = {"KEY": "of-the-vault", "BOTH": "vault"}
    return Expansion(secrets.get, {"HOME": "/h", "BOTH": "host", "PATH": "/p"}, ("HOME", "BOTH"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain $HOME %HOME% $(id)", "plain $HOME %HOME% $(id)"),
        ("a${HOME}b", "a/hb"),
        ("${KEY}", "of-the-vault"),
        ("${BOTH}", "vault"),
        ("${NONE:-x y}", "x y"),
        ("${NONE:-}", ""),
        ("${PATH:-no}", "no"),
    ],
)
def test_a_placeholder_is_filled_in_from_the_vault_then_from_allowed_variables(text: str, value: str) -> None:
    assert expansion_of().private(text, "env") == value


def test_a_value_is_not_filled_in_again() -> None:
    assert Expansion({"A": "${B}", "B": "secret"}.get, {}).private("${A}", "env") == "${B}"


def test_a_placeholder_without_value_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"\$\{PATH\} has no value"):
        expansion_of().private("${PATH}", "env")


def test_a_secret_is_not_put_where_others_can_read_it() -> None:
    expansion = expansion_of()
    assert expansion.public("--home=${HOME}", "args") == "--home=/h"
    with pytest.raises(InvalidArgument, match="is a secret") as error:
        expansion.public("--key=${KEY}", "args")
    assert "of-the-vault" not in str(error.value)
    assert expansion.secrets == {}


def test_a_server_that_fails_is_started_later_and_later_and_then_not() -> None:
    backoff = RestartBackoff()
    delays = []
    for _ in range(6):
        delays.append(backoff.delay(100.0))
        assert not backoff.is_over(100.0)
        backoff.note_failure(100.0)
    assert delays == [0, 0.5, 1, 2, 4, 8]
    assert backoff.is_over(399.0)
    assert not backoff.is_over(401.0)
    backoff.note_success()
    assert backoff.delay(100.0) == 0


def test_a_flood_is_more_than_fills_up_again() -> None:
    budget = MessageBudget(0.0)
    assert all(budget.spend(0.0) for _ in range(10_000))
    assert not budget.spend(0.0)
    assert budget.spend(10.0)
