"""What commands print for programs: one option for all of them, and one JSON value on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cyclopts import App
from cyclopts.argument import ArgumentCollection
from tests.surfaces.conftest import Cli

from casemate.errors import Unavailable
from casemate.model.overview import InstalledPackage
from casemate.operations.catalogue import catalogue
from casemate.packages.package_sets import Environments, PackageSet
from casemate.packages.store import default_folder
from casemate.surfaces.cli import application, commands
from casemate.surfaces.cli.connection import ServiceOptions

FORMS = {"text", "json"}
# What has no answer for programs, and why.
WITHOUT = {
    "wrap": "its streams are the command's",
    "serve": "it serves",
    "service": "it serves",
    "install": "it asks, and prints what a file is to hold",
    "completion": "it prints a file",
    "config reference": "it prints a file",
    "service unit": "it prints a file",
    "service logs": "it prints a file",
    "service stop": "it has no answer",
    "service token remove": "it has no answer",
    "tools add": "it has no answer",
    "tools remove": "it has no answer",
    "tools generate": "it writes files, and has no answer",
    "audit export": "it prints a line of JSON for each row",
    "vault set": "it has no answer",
    "vault delete": "it has no answer",
    "keys export": "a key in PEM is what programs read",
    "keys rotate": "it has no answer but an id",
    "kernel install": "it writes files: jupyter kernelspec list --json has them",
}
# What a local command gives for programs where there is nothing yet; those that need more have tests of their own.
EMPTY: dict[str, tuple[tuple[str, ...], Any]] = {
    "vault list": (("vault", "list"), []),
    "tools list": (("tools", "list"), {}),
    "tools search": (("tools", "search", "x"), "There are no tools."),
    "packages list": (("packages", "list"), []),
    "service token list": (("service", "token", "list"), []),
}
ELSEWHERE = {"run",
    "doctor", "validate", "config", "config check", "policy show", "policy check", "tools describe", "tools call",
    "packages install", "service status", "service token add", "keys", "keys list",
}  # fmt: skip


def every_command(app: App, path: str = "") -> Iterator[tuple[str, ArgumentCollection]]:
    """Every command with its parameters."""
    if app.default_command is not None:
        yield path, app.assemble_argument_collection()
    for name in app:
        if not name.startswith("-"):
            yield from every_command(app[name], f"{path} {name}".strip())


def answer_of(cli: Cli, *arguments: str) -> Any:
    """What a command gives for programs, which is all that it prints."""
    done = cli(*arguments, "--format", "json")
    assert (done.code, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def test_every_command_that_prints_facts_prints_them_for_programs_too() -> None:
    having = {
        path
        for path, parameters in every_command(application())
        if any({"--format"} <= {*one.names} and set(one.get_choices() or ()) == FORMS for one in parameters)
    }
    every = {path for path, _ in every_command(application())}
    assert sorted(every - having - WITHOUT.keys()) == []
    assert sorted(WITHOUT.keys() - (every - having)) == []


def test_every_command_that_asks_no_service_is_tried_here_or_elsewhere() -> None:
    mine = {
        path
        for path, parameters in every_command(application())
        if not any(one.field_info.annotation is ServiceOptions for one in parameters)
    }
    assert sorted(mine - WITHOUT.keys() - EMPTY.keys() - ELSEWHERE) == []


ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sessions set s x [1]": ("sessions.set", {"session": "s", "name": "x", "value": [1]}),
    "bridge s x NaN": ("sessions.set", {"session": "s", "name": "x", "value": "NaN"}),
    "sessions bridge x a b": ("sessions.bridge", {"name": "x", "source": "a", "target": "b"}),
    "unexpose s 80": ("sessions.unexpose", {"session": "s", "port": 80}),
    "diff s": ("sessions.diff", {"session": "s"}),
    "audit": ("audit.tail", {"limit": 50}),
    "audit prune --max-size 1KiB": ("audit.prune", {"max_size": 1024}),
    "audit propose r": ("audit.propose", {"run": "r"}),
    "egress a.test --port 5432": ("egress.request", {"domain": "a.test", "port": 5432, "reason": ""}),
    "web search two words": ("web.search", {"query": "two words", "limit": 10}),
    "web fetch https://a.test": ("web.fetch", {"url": "https://a.test", "whole": False, "timeout": 30.0}),
    "host read /srv/a --offset 1": ("host.read", {"path": "/srv/a", "offset": 1}),
    "host exec --secret KEY -- git -v": ("host.exec", {"command": ("git", "-v"), "secrets": ("KEY",)}),
}


@pytest.mark.parametrize("words", ASKS)
def test_a_command_that_is_one_operation_asks_it_with_arguments_that_it_takes(
    in_process: Cli, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    asked = []

    def ask(_service: ServiceOptions, operation: str, **arguments: Any) -> Any:
        asked.append((operation, arguments))
        raise Unavailable("the service is not here")

    monkeypatch.setattr(commands, "ask", ask)
    monkeypatch.setattr(commands, "ask_patiently", ask)
    assert (in_process(*words.split()).code, asked) == (69, [ASKS[words]])
    catalogue()[ASKS[words][0]].params.model_validate_json(json.dumps(ASKS[words][1]))


@pytest.mark.parametrize("name", EMPTY)
def test_where_there_is_nothing_programs_get_an_empty_value(in_process: Cli, name: str) -> None:
    arguments, expected = EMPTY[name]
    assert answer_of(in_process, *arguments) == expected
    assert json.loads(in_process(*arguments, "--format", "json").stdout) == expected


def test_a_policy_and_what_is_noticed_in_it_are_one_value(in_process: Cli) -> None:
    in_process.program('{"network": "listed", "rules": [{"allow": "egress", "host": "a.test"}]}', "p.json")
    shown = answer_of(in_process, "policy", "show", "--file", "p.json")
    assert [one["about"] for one in shown["rules"]] == ["host a.test"]
    before = in_process("policy", "show", "--file", "p.json", "--json")  # as it was called before
    assert json.loads(before.stdout) == shown
    assert answer_of(in_process, "policy", "check", "p.json") == {"settings": 1, "rules": 1, "warnings": []}
    in_process.program("limits:\n  memory: 64MiB\n", "c.yaml")
    assert answer_of(in_process, "config", "check", "c.yaml")["settings"] == 1


def test_servers_are_listed_for_programs_without_what_may_be_secret(in_process: Cli) -> None:
    text = '{"mcpServers": {"time": {"command": "uvx", "env": {"TOKEN": "hunter2"}}}}'
    (in_process.folder / in_process.program(text, "s.json")).chmod(0o600)
    shown = answer_of(in_process, "tools", "list", "--file", "s.json")
    assert shown == {"time": {"command": "uvx", "env": ["TOKEN"]}}
    assert json.loads(in_process("tools", "list", "--file", "s.json", "--json").stdout) == shown  # as before


def test_secrets_are_listed_as_the_operation_gives_them(in_process: Cli) -> None:
    for name, *more in (("PLAIN",), ("HELD", "--inject-host", "api.test")):
        assert in_process("vault", "set", name, *more, stdin=b"hunter2-hunter2").code == 0
    assert answer_of(in_process, "vault", "list") == [
        {"name": "HELD", "inject": {"hosts": ["api.test"], "header": "Authorization", "format": "Bearer {}"}},
        {"name": "PLAIN", "inject": None},
    ]


def test_tokens_are_told_once_and_listed_without_their_hashes(in_process: Cli) -> None:
    made = answer_of(in_process, "service", "token", "add", "laptop", "--may-approve", "--secret", "KEY")
    [listed] = answer_of(in_process, "service", "token", "list")
    assert made["name"] == "laptop"
    assert made["token"].startswith("casemate_")
    assert {name: listed[name] for name in ("name", "audience", "namespace", "may_approve", "secrets", "expires")} == {
        "name": "laptop", "audience": "agent", "namespace": "default", "may_approve": True,
        "secrets": ["KEY"], "expires": None,
    }  # fmt: skip
    told = "name audience namespace may_approve may_run_commands secrets created expires"
    assert listed.keys() == {*told.split()}


def test_environments_are_listed_with_what_was_asked_for(in_process: Cli) -> None:
    packages = (InstalledPackage("rich", "15.0.0", "rich.whl", "https://a.test/rich.whl", "0" * 64, 7),)
    kept = Environments(default_folder(in_process.env) / "environments")
    (in_process.folder / "layer").mkdir()
    kept.keep("key", PackageSet(in_process.folder / "layer"), ["rich>=2"], packages)
    expected = [{"asked": ["rich>=2"], "packages": [{"name": "rich", "version": "15.0.0"}]}]
    assert answer_of(in_process, "packages", "list") == expected
    assert in_process("packages", "list").stdout == b"rich>=2: rich==15.0.0\n"
