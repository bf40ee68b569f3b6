"""``casemate policy`` and ``casemate run --policy``: what is in force, from which line, and nothing beyond it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.surfaces.conftest import Cli

POLICY = """\
allowed_domains: [pypi.org]
limits:
  wall: 5
  processes: 40
rules:
  - allow: tool
    server: files
    tool: read
    arguments: {path: {path: /project/**}}
    uses: 20
    lasts: 10m
defaults: {package: deny}
"""


@pytest.fixture
def cli(in_process: Cli) -> Cli:
    """The command, called in this process."""
    return in_process


def rows(output: bytes) -> list[list[str]]:
    return [line.split() for line in output.decode().splitlines()]


def test_show_prints_what_is_in_force_and_from_which_line(cli: Cli) -> None:
    done = cli("policy", "show", "--file", cli.program(POLICY, "p.yaml"))
    assert (done.code, done.stderr) == (0, b"")
    shown = rows(done.stdout)
    for row in (
        ["allowed_domains", "pypi.org", "p.yaml:1"], ["limits.wall", "5", "p.yaml:3"],
        ["limits.disk", "256", "MiB", "built", "in"], ["package", "deny",
        "p.yaml:12"], ["shell", "allow", "built", "in"],
    ):  # fmt: skip
        assert row in shown
    rule = b'allow  tool  server files; tool read; arguments path: path "/project/**"'
    assert rule + b"  20 times, for 600 s  p.yaml:6" in done.stdout


def test_show_prints_where_a_host_is_that_has_private_addresses(cli: Cli) -> None:
    text = 'rules:\n  - {allow: egress, host: "db.test.example:5432", addresses: [10.20.0.0/16, 10.30.0.5]}\n'
    done = cli("policy", "show", "--file", cli.program(text, "p.yaml"))
    assert b"allow  egress  host db.test.example:5432; at 10.20.0.0/16, 10.30.0.5/32" in done.stdout


def test_show_gives_the_same_as_json(cli: Cli) -> None:
    document = json.loads(cli("policy", "show", "--json", "--file", cli.program(POLICY, "p.yaml")).stdout)
    assert {"name": "limits.wall", "value": 5, "where": "p.yaml:3"} in document["settings"]
    assert [(rule["effect"], rule["kind"], rule["where"]) for rule in document["rules"]] == [
        ("allow", "tool", "p.yaml:6")
    ]
    assert document["defaults"]["package"] == {"effect": "deny", "where": "p.yaml:12"}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_show_prints_no_password_of_an_address(cli: Cli, form: tuple[str, ...]) -> None:
    places = 'audit_anchors: ["https://a.test/?k=hunter2", "| x hunter2"]'
    text = f'package_indexes: ["https://u:hunter2@pypi.test/"]\n{places}\n'
    cli = replace(cli, env={**cli.env, "CASEMATE_CONFIG": cli.program(text, "p.yaml")})
    done = cli("policy", "show", *form)
    assert done.code == 0
    assert b"hunter2" not in done.stdout
    assert b"https://***@pypi.test/" in done.stdout


def test_without_a_file_the_variable_names_it_or_what_is_built_in_is_shown(cli: Cli) -> None:
    assert b"listed   built in" in cli("policy", "show").stdout
    cli = replace(cli, env={**cli.env, "CASEMATE_POLICY": cli.program(POLICY, "p.yaml")})
    assert b"pypi.org" in cli("policy", "show").stdout


def test_check_says_what_is_wrong_and_where(cli: Cli) -> None:
    sound = cli("policy", "check", cli.program(POLICY, "p.yaml"))
    assert (sound.code, sound.stdout) == (0, b"sound: 3 settings, 1 rules, 0 warnings\n")
    wrong = cli("policy", "check", cli.program(POLICY.replace("wall: 5", "wal: 5"), "p.yaml"))
    assert wrong.code == 2
    assert wrong.stderr.startswith(b"casemate: --policy: p.yaml:3: limits.wal: is not a known key")
    other = cli("policy", "check", cli.program("audit: true\n", "p.yaml"))
    assert (other.code, other.stderr) == (2, cli("run", "--policy", "p.yaml", "-").stderr)
    assert b"audit: is an option of a sandbox, not of a policy" in other.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"filesystem": {"allowWrite": []}}', "writable nothing"),
        ('{"filesystem": {"denyRead": []}}', "writable nothing"),
        ('{"filesystem": {"allowWrite": ["/tmp"]}}', "writable /tmp"),
        ('{"network": {"deniedResolvedAddresses": ["10.0.0.0/8"]}}', "never dialled 10.0.0.0/8"),
    ],
)
def test_what_srts_settings_bound_counts_as_a_setting_and_is_shown(cli: Cli, text: str, shown: str) -> None:
    file = cli.program(text, "s.json")
    assert cli("policy", "check", file).stdout.startswith(b"sound: 1 settings")
    assert [*shown.split(), "s.json:1"] in rows(cli("policy", "show", "--file", file).stdout)


def test_a_warning_of_srts_settings_is_told(cli: Cli) -> None:
    done = cli("policy", "check", cli.program('{"enableWeakerNestedSandbox": true}', "s.json"))
    assert done.code == 0
    assert done.stderr.startswith(b"casemate: s.json:1: enableWeakerNestedSandbox: casemate never weakens")


def test_what_holds_more_strictly_than_srt_has_it_is_in_the_result_and_not_said_at_every_run(cli: Cli) -> None:
    settings = cli.program('{"enableWeakerNestedSandbox": true, "defaults": {"shell": "deny"}}', "s.json")
    done = cli("run", "--policy", settings, "--format", "json", cli.program("1"))
    assert done.stderr.startswith(b"casemate: s.json:1: deny: shell: ")
    assert b"never weakens" not in done.stderr
    assert any("never weakens a wall" in note for note in json.loads(done.stdout)["isolation"]["notes"])
    wrapped = cli("wrap", "--policy", settings, "--explain", "--", "true")
    assert b"deny: shell: " in wrapped.stderr
    assert b"never weakens" not in wrapped.stderr


def test_what_a_hostile_file_says_cannot_command_the_terminal(cli: Cli) -> None:
    file = cli.program('rules: [{deny: tool, reason: x, server: "a\\e]0;x\\a"}]\n"\\e[2J": 1\n', "p.yaml")
    for command in ("show", "check"):
        done = cli("policy", command, *(("--file",) if command == "show" else ()), file)
        assert done.code == 2
        assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["nowhere.yaml", "policy.txt"])
def test_a_policy_that_cannot_be_read_lets_nothing_run(cli: Cli, name: str) -> None:
    done = cli("run", cli.program("print(7)"), "--policy", name)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"casemate: --policy: ")


@pytest.mark.parametrize("policy", ["rules: [{deny: shell}]", "defaults: {process: deny}"])
def test_a_rule_that_a_run_cannot_keep_is_told_at_its_start_and_in_its_result(cli: Cli, policy: str) -> None:
    code = "import subprocess; subprocess.run(['true'])"
    done = cli("run", "--policy", cli.program(policy, "p.yaml"), "--format", "json", cli.program(code))
    assert b"one-shot runs, Node and wrapped commands can still start programs" in done.stderr
    assert json.loads(done.stdout)["isolation"]["notes"][-1] in done.stderr.decode()


def test_paths_of_srts_settings_start_at_the_workspace_if_something_is_configured(cli: Cli) -> None:
    (cli.folder / "ws").mkdir()
    (cli.folder / "ws" / "private.txt").write_text("hunter2")
    cli = replace(cli, env={**cli.env, "CASEMATE_LIMITS_MEMORY": "300MiB"})
    file = cli.program('{"filesystem": {"denyRead": ["./private.txt"]}}', "s.json")
    done = cli("run", "--policy", file, "--workspace", "ws", cli.program("print(open('private.txt').read())"))
    assert done.code != 0
    assert b"hunter2" not in done.stdout
