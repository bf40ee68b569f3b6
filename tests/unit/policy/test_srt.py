"""srt's settings keys: honoured, or refused, or a warning that says what holds instead; never passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.policy.files import read, read_json, refusal_of_json

USUAL: dict[str, Any] = {
    "network": {"allowedDomains": ["api.test", "*.good.test"], "deniedDomains": ["bad.good.test"]},
    "filesystem": {"denyRead": ["~/.ssh"], "allowWrite": [".", "/tmp"], "denyWrite": ["/etc/passwd"]},
}


def test_the_usual_settings_are_a_policy() -> None:
    policy = read_json(USUAL)
    assert policy.hosts.allows("api.test", 443)
    assert policy.hosts.allows("a.good.test", 80)
    assert not policy.hosts.allows("bad.good.test", 443)
    assert policy.workspace == "/here"
    assert policy.hidden == (("/home/me/.ssh", "p.json:13"),)
    assert policy.unwritable == (("/etc/passwd", "p.json:20"),)
    assert [one.where for one in policy.settings if one.name == "allowed_domains"] == ["p.json:4", "p.json:5"]


def test_what_holds_otherwise_than_in_srt_is_said() -> None:
    warnings = read_json(USUAL).warnings
    assert any("a cell sees only the system's programs" in one for one in warnings)
    assert any("/tmp: a cell has its own" in one for one in warnings)


@pytest.mark.parametrize(("keys", "said"), [
    ({"enableWeakerNestedSandbox": True}, "never weakens"), ({"allowNestedUserNamespaces": True}, "no namespaces"),
    ({"network": {"allowLocalBinding": True}}, "binds on its own loopback"),
    ({"network": {"allowUnixSockets": ["/x"]}}, "cannot reach a socket"),
    ({"network": {"allowAllUnixSockets": True}}, "none of this machine's"),
    ({"ripgrep": {"command": "rg"}}, "has no effect"),
    ({"network": {"allowMachLookup": ["x"]}}, "has no effect"), ({"allowPty": True}, "has no effect in casemate"),
    ({"filesystem": {"allowGitConfig": True}}, "stays protected"), ({"ignoreViolations": {"*": ["x"]}}, "reported"),
    ({"bwrapPath": "/x"}, "has no effect"),
    ({"network": {"deniedDomainReasons": {"a": "b"}}}, "not shown")])  # fmt: skip
def test_what_casemate_keeps_more_strictly_is_a_warning_with_its_line(keys: dict[str, Any], said: str) -> None:
    warnings = read_json(keys).warnings
    assert any(said in one and one.startswith("p.json:") for one in warnings)


@pytest.mark.parametrize("keys", [
    {"enableWeakerNestedSandbox": False}, {"network": {"allowLocalBinding": False}}, {"network": {}},
    {"filesystem": {}},
    {"allowPty": False}, {"network": {"requireHostMatch": True}},
    {"network": {"deniedResolvedAddresses": ["10.0.0.0/8"]}},
    {"network": {"tlsTerminate": None}}])  # fmt: skip
def test_what_holds_anyhow_needs_no_words(keys: dict[str, Any]) -> None:
    assert read_json(keys).warnings == ()


@pytest.mark.parametrize(("keys", "said"), [
    ({"filesystem": {"allowWrite": ["/else", "/data"]}},
    "p.json:5: filesystem.allowWrite.1: /data: a cell writes in one folder"),
    ({"filesystem": {"allowWrite": ["*.txt"]}}, "p.json:4: filesystem.allowWrite.0"),
    ({"filesystem": {"allowWrite": ["~"]}}, "p.json:4: filesystem.allowWrite.0: /home/me: would show"),
    ({"filesystem": {"allowWrite": ["/"]}}, "p.json:4: filesystem.allowWrite.0: /: would show"),
    ({"filesystem": {"allowWrite": [5]}}, "p.json:4: filesystem.allowWrite.0: is not a path"),
    ({"filesystem": {"allowWrite": "."}}, "p.json:3: filesystem.allowWrite: is not a list"),
    ({"filesystem": {"denyRead": ["/usr/share/doc"]}}, "p.json:4: filesystem.denyRead.0"),
    ({"filesystem": {"denyRead": [{"path": "/a*", "literal": True}]}}, "p.json:4: filesystem.denyRead.0"),
    ({"filesystem": {"disabled": True}}, "p.json:3: filesystem.disabled"),
    ({"filesystem": {"allowExecute": []}}, "p.json:3: filesystem.allowExecute: is not a known key"),
    ({"filesystem": 5}, "p.json:2"),
    ({"network": {"httpProxyPort": 8080}}, "p.json:3: network.httpProxyPort"),
    ({"network": {"tlsTerminate": {"caCertPath": "x"}}}, "p.json:3: network.tlsTerminate"),
    ({"network": {"requireHostMatch": False}}, "p.json:3: network.requireHostMatch"),
    ({"network": {"allowedDomain": []}}, "p.json:3: network.allowedDomain: is not a known key"),
    ({"network": {"allowedDomains": ["*"]}}, "p.json:4: allowed_domains.0"),
    ({"network": {"allowedDomains": ["127.0.0.1"]}}, "p.json:4: allowed_domains.0"),
    ({"network": {"deniedResolvedAddresses": ["8.8.8.0/24"]}}, "p.json:4: network.deniedResolvedAddresses.0"),
    ({"network": {"strictAllowlist": "yes"}}, "p.json:3: network.strictAllowlist"),
    ({"credentials": {"envVars": [{"name": "X"}]}}, "p.json:2: credentials: casemate keeps secrets"),
    ({"network": {"allowedDomains": []}, "allowed_domains": ["a.test"]},
    "p.json:3: network.allowedDomains: is given twice"),
    ({"filesystem": {}, "unknown": 1}, "p.json:3: unknown: is not a known key")])  # fmt: skip
def test_what_cannot_be_honoured_is_an_error_with_its_line(keys: dict[str, Any], said: str) -> None:
    assert refusal_of_json(keys).startswith(said)


@pytest.mark.parametrize(("named", "is_refused"), [("10.7.0.0/16", True), ("10.0.0.0/8", True), ("10.8.0.0/16", False)])
def test_no_rule_names_addresses_that_the_same_file_refuses(named: str, is_refused: bool) -> None:
    rules = [{"allow": "egress", "host": "a.test", "addresses": [named]}]
    keys = {"rules": rules, "network": {"deniedResolvedAddresses": ["10.7.7.0/24", "fd00::/8"]}}
    if not is_refused:
        assert read_json(keys).private
        return
    assert "addresses: 10.7.7.0/24 is refused by the same file (p.json:" in refusal_of_json(keys)


def test_what_lies_outside_the_workspace_is_kept_for_commands_that_can_be_shown_it() -> None:
    policy = read_json({"filesystem": {"allowRead": ["/data", "/usr/share", "./in"], "allowWrite": ["."]}})
    assert policy.shown == (("/data", "p.json:4"), (f"{policy.workspace}/in", "p.json:6"))


def test_a_file_that_names_no_folder_to_write_in_allows_none() -> None:
    assert read_json({"filesystem": {"denyRead": []}}).writable == ((), "p.json:2")
    assert read_json({"filesystem": {"allowWrite": ["."]}}).writable == (("/here",), "p.json:3")
    assert read_json({"network": {}}).writable is None


def test_a_strict_list_asks_nobody() -> None:
    policy = read_json({"network": {"allowedDomains": ["a.test"], "strictAllowlist": True}})
    assert policy.rules.default("egress") == ("deny", "p.json:6")


def test_everything_denied_is_no_network() -> None:
    policy = read_json({"network": {"allowedDomains": ["a.test"], "deniedDomains": ["*"]}})
    assert policy.network == "none"
    assert not policy.hosts.allows("a.test", 443)


def test_casemates_own_keys_may_stand_beside_them() -> None:
    policy = read_json({**USUAL, "limits": {"wall": 5}, "rules": [{"ask": "shell"}]})
    assert policy.limits == {"wall": 5.0}
    assert policy.rules.written[0].kind == "shell"


def test_folders_beneath_the_workspace_need_no_words() -> None:
    keys = {"allowWrite": ["/here/a", "/here"], "allowRead": ["/here/b", "/usr/share"]}
    assert read_json({"filesystem": keys}).workspace == "/here"


@pytest.mark.parametrize("folder", ["/here", "/tmp/mine"])
def test_the_working_folder_is_the_workspace_whatever_else_may_be_written(folder: str) -> None:
    """Also one in /tmp: of which a cell has another of its own."""
    settings = json.dumps({"filesystem": {"allowWrite": ["~/.npm", ".", "/tmp"]}})
    policy = read(settings, "json", folder)
    assert policy.workspace == folder
    assert any("/home/me/.npm" in warning for warning in policy.warnings)
