"""``casemate config``, and what a configuration does to ``casemate run``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.surfaces.conftest import Cli

FILE = """\
namespace: team
limits:
  processes: 40
package_indexes: ["https://u:hunter2@pypi.test/simple/"]
"""


@pytest.fixture
def cli(in_process: Cli) -> Cli:
    """The command, called in this process."""
    return in_process


def written(cli: Cli, text: str = FILE) -> str:
    path = Path(cli.env["HOME"], ".config", "casemate", "config.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def with_variables(cli: Cli, **variables: str) -> Cli:
    return replace(cli, env={**cli.env, **variables})


def test_each_value_is_shown_with_where_it_came_from(cli: Cli) -> None:
    file = written(cli)
    done = with_variables(cli, CASEMATE_SERVE_TOOLSET="full", CASEMATE_SECRET_DEFAULT_X="hunter2")("config")
    assert (done.code, done.stderr) == (0, b"")
    rows = [line.split() for line in done.stdout.decode().splitlines()]
    for row in (
        ["file", file], ["namespace", "team", f"{file}:1"], ["limits.processes", "40", f"{file}:3"],
        ["limits.inodes", "20000", "default"], ["serve.toolset", "full", "CASEMATE_SERVE_TOOLSET"],
    ):  # fmt: skip
        assert row in rows
    assert b"hunter2" not in done.stdout


def test_where_there_is_no_file_the_place_of_one_is_named(cli: Cli) -> None:
    place = Path(cli.env["HOME"], ".config", "casemate", "config.yaml")
    said = f"file  none: it would be {place} (or .yml, .toml, .json)"
    assert cli("config").stdout.decode().splitlines()[0] == said
    done = with_variables(cli, CASEMATE_CONFIG="none")("config")
    assert done.stdout.splitlines()[0] == b"file  none: CASEMATE_CONFIG is none"
    assert with_variables(cli, HOME="")("config").stdout.startswith(b"file  none: no configuration: neither ")


def test_the_same_as_json_and_one_value_alone(cli: Cli) -> None:
    file = written(cli)
    document = json.loads(cli("config", "--format", "json").stdout)
    assert document["file"] == file
    assert document["values"]["limits.processes"] == {"value": 40, "source": f"{file}:3"}
    assert "hunter2" not in json.dumps(document)
    assert cli("config", "limits.processes").stdout == b"40\n"
    assert next(iter(json.loads(cli("config", "limits", "--format", "json").stdout)["values"])) == "limits.memory"
    done = cli("config", "limits.procesess")
    assert (done.code, done.stderr.splitlines()[0]) == (
        2, b"casemate: KEY: 'limits.procesess' is not a known key; did you mean limits.processes?",
    )  # fmt: skip

    done = cli("config", "nope")
    assert (done.code, done.stderr.splitlines()[0]) == (2, b"casemate: KEY: 'nope' is not a known key")


def test_a_file_is_checked_without_being_used(cli: Cli) -> None:
    (cli.folder / "c.toml").write_text('namespace = "a"\n[service]\nidle_stop = 60\n[limits]\nwall = 5\n')
    done = cli("config", "check", "c.toml")
    assert (done.code, done.stdout) == (0, b"sound: 3 settings, 0 rules, 0 warnings\n")
    (cli.folder / "c.toml").write_text('namespace = "a"\n[service]\nidle_stp = 60\n')
    done = cli("config", "check", "c.toml")
    place = str(cli.folder / "c.toml").encode() + b":3: service.idle_stp"
    assert done.code == 2
    assert done.stderr.startswith(b"casemate: the configuration: " + place + b": is not a known key")
    assert b"did you mean idle_stop?" in done.stderr


@pytest.mark.parametrize("command", [("config",), ("run", "program.py")])
def test_a_typo_lets_nothing_run_and_is_named(cli: Cli, command: tuple[str, ...]) -> None:
    cli.program("print(7)")
    done = with_variables(cli, CASEMATE_NETWRK="none")(*command)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"casemate: CASEMATE_NETWRK: is not a known variable; did you mean CASEMATE_NETWORK?")
    file = written(cli, "limits:\n  memry: 1\n").encode()
    done = cli(*command)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"casemate: the configuration: " + file + b":2: limits.memry: is not a known key")


def plan(cli: Cli, *options: str) -> Any:
    return json.loads(cli("run", cli.program("1"), *options, "--explain", "--format", "json").stdout)


def test_a_run_keeps_to_what_is_configured_and_its_options_narrow_it(cli: Cli) -> None:
    assert plan(cli)["limits"]["processes"] == 64
    written(cli)
    assert plan(cli)["limits"]["processes"] == 40
    assert plan(cli, "--processes", "90")["limits"]["processes"] == 40
    assert plan(cli, "--processes", "30")["limits"]["processes"] == 30
    assert plan(with_variables(cli, CASEMATE_CONFIG="none"))["limits"]["processes"] == 64
    assert cli("run", cli.program("print(7)")).stdout == b"7\n"


def test_an_option_goes_before_a_variable(cli: Cli) -> None:
    cli = with_variables(cli, CASEMATE_MAX_RAM_MB="64", CASEMATE_TIMEOUT="90", CASEMATE_LIMITS_WALL="70")
    limits = plan(cli)["limits"]
    assert (limits["memory"], limits["wall"], plan(cli)["deadline"]) == (64 << 20, 70, 70)
    limits = plan(cli, "--memory", "128MiB", "--timeout", "100")["limits"]
    assert (limits["memory"], limits["wall"]) == (128 << 20, 100)


def test_a_run_reaches_no_host_unless_somebody_said_which(cli: Cli) -> None:
    assert plan(cli)["network"] == "none"
    written(cli)
    assert plan(cli)["network"] == "none"
    assert plan(with_variables(cli, CASEMATE_ALLOWED_DOMAINS="a.test"))["network"] == "listed"
    assert plan(with_variables(cli, CASEMATE_NETWORK="public"))["network"] == "public"
    Path(cli.env["HOME"], ".config", "casemate", "config.yaml").write_text("allowed_domains: [a.test]\n")
    assert plan(cli)["network"] == "listed"


def test_the_outputs_folder_that_is_configured_gets_the_files(cli: Cli) -> None:
    cli = with_variables(cli, CASEMATE_OUTPUT_DIR="kept")
    done = cli("run", cli.program("open('a.txt', 'w').write('x')"))
    assert done.code == 0
    assert (cli.folder / "kept" / "a.txt").read_text() == "x"
    assert b"not saved" not in done.stderr


def test_secrets_come_from_the_namespace_and_the_vault_that_are_configured(cli: Cli) -> None:
    cli = with_variables(cli, CASEMATE_NAMESPACE="team", CASEMATE_VAULT="env", CASEMATE_SECRET_TEAM_TOKEN="abcdefgh")
    done = cli("run", cli.program("import os; print(len(os.environ['TOKEN']))"), "--secret", "TOKEN")
    assert (done.code, done.stdout) == (0, b"8\n")


@pytest.mark.full
def test_other_commands_take_what_is_configured_too(cli: Cli) -> None:
    there = with_variables(cli, CASEMATE_NAMESPACE="team")
    assert there("vault", "set", "TOKEN", stdin=b"abcdefgh").code == 0
    assert (there("vault", "list").stdout, cli("vault", "list").stdout) == (b"TOKEN\n", b"")
    done = there("run", there.program("import os; print(len(os.environ['TOKEN']))"), "--secret", "TOKEN")
    assert (done.code, done.stdout) == (0, b"8\n")
    done = with_variables(cli, CASEMATE_PACKAGE_INDEXES="ftp://u:hunter2@pypi.test/")("packages", "install", "x")
    assert done.code == 2
    assert b"package-indexes: an index is not a valid address" in done.stderr
    assert b"hunter2" not in done.stderr


def test_a_variable_of_sandboxmcp_is_answered_with_ours(cli: Cli) -> None:
    done = with_variables(cli, SANDBOXMCP_MAX_RAM_MB="5")("config", "limits.memory")
    assert done.stdout == b"512 MiB\n"
    assert done.stderr == b"casemate: SANDBOXMCP_MAX_RAM_MB is not read; use CASEMATE_LIMITS_MEMORY here\n"


def test_validate_is_as_it_is_configured(cli: Cli) -> None:
    script = cli.program("print(1)")
    assert with_variables(cli, CASEMATE_LIMITS_WALL="8")("validate", script).code == 0  # its usual time is longer
    written(cli, "isolation: {at_least: own-kernel}\n")
    done = with_variables(cli, CASEMATE_ISOLATION="native")("validate", script)
    assert (done.code, b"at_least is own-kernel" in done.stderr) == (69, True), done.stderr
    done = with_variables(cli, CASEMATE_LIMITS_MEMROY="1GiB")("validate", script)
    assert (done.code, b"CASEMATE_LIMITS_MEMROY" in done.stderr) == (2, True)


def test_the_usual_time_of_a_run_is_no_more_than_the_policy_permits(cli: Cli) -> None:
    written(cli, "timeout: 120\nlimits: {wall: 100}\n")
    done = cli("run", "--explain", "--format", "json", cli.program("print(1)"))
    assert json.loads(done.stdout)["deadline"] == 100
