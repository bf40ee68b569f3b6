"""What commands print for programs: one option for all of them, and one JSON value on standard output."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App
from cyclopts.argument import ArgumentCollection

from casemate.model.overview import InstalledPackage
from casemate.packages.package_sets import Environments, PackageSet
from casemate.packages.store import default_folder
from casemate.surfaces.cli import application, command
from casemate.surfaces.cli.connection import ServiceOptions

FORMS = {"text", "json"}
# What has no answer for programs, and why.
WITHOUT = {
    "run": "its --output is the folder of what the program leaves; --format json has the outcome",
    "wrap": "its streams are the command's",
    "serve": "it serves",
    "service": "it serves",
    "install": "it asks, and prints what a file is to hold",
    "completion": "it prints a file",
    "config reference": "it prints a file",
    "service unit": "it prints a file",
    "service containerfile": "it prints a file",
    "service logs": "it prints a file",
    "service stop": "it has no answer",
    "service token remove": "it has no answer",
    "tools add": "it has no answer",
    "tools remove": "it has no answer",
    "tools generate": "it writes files, and has no answer",
    "vault set": "it has no answer",
    "vault delete": "it has no answer",
}
# What a local command gives for programs where there is nothing yet; those that need more have tests of their own.
EMPTY: dict[str, tuple[tuple[str, ...], Any]] = {
    "vault list": (("vault", "list"), []),
    "tools list": (("tools", "list"), {}),
    "tools search": (("tools", "search", "x"), "There are no tools."),
    "packages list": (("packages", "list"), []),
    "service token list": (("service", "token", "list"), []),
}
ELSEWHERE = {
    "doctor", "validate", "config", "config check", "policy show", "policy check", "tools describe", "tools call",
    "packages install", "service status", "service token add",
}  # fmt: skip


def commands(app: App, path: str = "") -> Iterator[tuple[str, ArgumentCollection]]:
    """Every command that there is, with its parameters."""
    if app.default_command is not None:
        yield path, app.assemble_argument_collection()
    for name in app:
        if not name.startswith("-"):
            yield from commands(app[name], f"{path} {name}".strip())


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command gives for programs, which is all that it prints."""
    assert command([*arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has nothing yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("STATE", "CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("CASEMATE_POLICY", "CASEMATE_CONFIG", "CASEMATE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_that_prints_facts_prints_them_for_programs_too() -> None:
    having = {
        path
        for path, parameters in commands(application())
        if any({"--output", "--format"} <= {*one.names} and set(one.get_choices() or ()) == FORMS for one in parameters)
    }
    every = {path for path, _ in commands(application())}
    assert sorted(every - having - WITHOUT.keys()) == []
    assert sorted(WITHOUT.keys() - (every - having)) == []


def test_every_command_that_asks_no_service_is_tried_here_or_elsewhere() -> None:
    mine = {
        path
        for path, parameters in commands(application())
        if not any(one.field_info.annotation is ServiceOptions for one in parameters)
    }
    assert sorted(mine - WITHOUT.keys() - EMPTY.keys() - ELSEWHERE) == []


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.usefixtures("home")
def test_where_there_is_nothing_programs_get_an_empty_value(capsys: pytest.CaptureFixture[str], name: str) -> None:
    arguments, expected = EMPTY[name]
    assert told(capsys, *arguments, "--output", "json") == expected
    assert told(capsys, *arguments, "--format", "json") == expected


def test_a_policy_and_what_is_noticed_in_it_are_one_value(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "p.json").write_text('{"network": "listed", "rules": [{"allow": "egress", "host": "a.test"}]}')
    shown = told(capsys, "policy", "show", "--file", "p.json", "--output", "json")
    assert [one["about"] for one in shown["rules"]] == ["host a.test"]
    assert told(capsys, "policy", "show", "--file", "p.json", "--json") == shown  # as it was called before
    assert told(capsys, "policy", "check", "p.json", "--output", "json") == {"settings": 1, "rules": 1, "warnings": []}
    (home / "c.yaml").write_text("limits:\n  memory: 64MiB\n")
    assert told(capsys, "config", "check", "c.yaml", "--output", "json")["settings"] == 1


def test_servers_are_listed_for_programs_without_what_may_be_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "s.json").write_text('{"mcpServers": {"time": {"command": "uvx", "env": {"TOKEN": "hunter2"}}}}')
    (home / "s.json").chmod(0o600)
    shown = told(capsys, "tools", "list", "--file", "s.json", "--output", "json")
    assert shown == {"time": {"command": "uvx", "env": ["TOKEN"]}}
    assert told(capsys, "tools", "list", "--file", "s.json", "--json") == shown  # as it was called before


@pytest.mark.usefixtures("home")
def test_secrets_are_listed_as_the_operation_gives_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, *more in (("PLAIN",), ("HELD", "--inject-host", "api.test")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hunter2-hunter2")))
        assert command(["vault", "set", name, *more]) == 0
    assert told(capsys, "vault", "list", "--output", "json") == [
        {"name": "HELD", "inject": {"hosts": ["api.test"], "header": "Authorization", "format": "Bearer {}"}},
        {"name": "PLAIN", "inject": None},
    ]


@pytest.mark.usefixtures("home")
def test_tokens_are_told_once_and_listed_without_their_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    made = told(capsys, "service", "token", "add", "laptop", "--may-approve", "--output", "json")
    [listed] = told(capsys, "service", "token", "list", "--output", "json")
    assert made["name"] == "laptop"
    assert made["token"].startswith("casemate_")
    assert {name: listed[name] for name in ("name", "audience", "namespace", "may_approve", "expires")} == {
        "name": "laptop", "audience": "agent", "namespace": "default", "may_approve": True, "expires": None,
    }  # fmt: skip
    assert listed.keys() == {"name", "audience", "namespace", "may_approve", "created", "expires"}


def test_environments_are_listed_with_what_was_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packages = (InstalledPackage("rich", "15.0.0", "rich.whl", "https://a.test/rich.whl", "0" * 64, 7),)
    kept = Environments(default_folder(os.environ) / "environments")
    (home / "layer").mkdir()
    kept.keep("key", PackageSet(home / "layer"), ["rich>=2"], packages)
    expected = [{"asked": ["rich>=2"], "packages": [{"name": "rich", "version": "15.0.0"}]}]
    assert told(capsys, "packages", "list", "--output", "json") == expected
    assert command(["packages", "list"]) == 0
    assert capsys.readouterr().out == "rich>=2: rich==15.0.0\n"
