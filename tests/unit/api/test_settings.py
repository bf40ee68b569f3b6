"""Defaults, file, variables and arguments together; and where each value came from."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from casemate import InvalidArgument, Limits, Sandbox, sync
from casemate.api import config_files, keys, settings
from casemate.api.keys import ALIASES, KEYS, LIMITS, VARIABLES
from casemate.api.settings import Settings, settings_of
from casemate.model.sandbox_options import SandboxOptions
from casemate.policy.keys import FileOptions
from casemate.surfaces.cli.daemon import sandbox_of
from casemate.vault.store import INJECT_PREFIX, SECRET_PREFIX

FILE = """\
allowed_domains: [pypi.org]
limits:
  memory: 1GiB
  wall: 120
namespace: of-the-file
concurrency: 3
approval_timeout: 9
timeout: 20
service:
  idle_stop: 600
serve: {toolset: full}
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The variables of a user without any configuration."""
    (tmp_path / ".config" / "casemate").mkdir(parents=True)
    return {"HOME": str(tmp_path)}


def written(home: Mapping[str, str], text: str, name: str = "config.yaml") -> str:
    path = Path(home["HOME"], ".config", "casemate", name)
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def in_force(found: Settings) -> dict[str, tuple[Any, str]]:
    return {key.name: (one.value, one.where) for key, one in found.in_force()}


def test_without_anything_everything_is_the_default(home: dict[str, str]) -> None:
    assert not config_files.is_configured(home)
    found = settings_of(home)
    assert (found.file, found.sandbox_arguments(home)) == (None, {})
    assert {where for _, where in in_force(found).values()} == {"default"}
    assert (found.service.idle_stop, found.serve.toolset, found.timeout) == (None, "default", 60.0)


def test_later_wins_and_each_value_says_where_it_is_from(home: dict[str, str]) -> None:
    file = written(home, FILE)
    environ = {**home, "CASEMATE_NAMESPACE": "of-the-variable", "CASEMATE_CONCURRENCY": "4", "CASEMATE_TIMEOUT": "30"}
    found = settings_of(environ, arguments={"concurrency": 5, "serve.port": 81, "namespace": None})
    values = in_force(found)
    assert values["approval_timeout"] == (9, f"{file}:7")
    assert values["namespace"] == ("of-the-variable", "CASEMATE_NAMESPACE")
    assert values["concurrency"] == (5, "argument")
    assert values["allowed_domains"] == ("pypi.org", f"{file}:1")
    assert values["limits.wall"] == (120, f"{file}:4")
    assert values["limits.disk"] == (256 << 20, "default")
    assert (found.timeout, found.serve.port, found.serve.toolset, found.service.idle_stop) == (30.0, 81, "full", 600)


def test_what_is_permitted_is_narrowed_and_never_widened(home: dict[str, str]) -> None:
    file = written(home, FILE)
    found = settings_of({**home, "CASEMATE_LIMITS_MEMORY": "64MiB", "CASEMATE_LIMITS_WALL": "3600"})
    assert in_force(found)["limits.memory"] == (64 << 20, "CASEMATE_LIMITS_MEMORY")
    assert in_force(found)["limits.wall"] == (120, f"{file}:4")
    with sync.Sandbox(**found.sandbox_arguments(home), audit=home["HOME"] + "/a.db") as sandbox:
        limits = sandbox.explain("1", timeout=None).limits
    assert (limits.memory, limits.wall) == (64 << 20, 120)
    wider = settings_of({**home, "CASEMATE_NETWORK": "public"})
    with pytest.raises(InvalidArgument, match="CASEMATE_NETWORK: 'public' is beyond the policy"):
        list(wider.in_force())
    with pytest.raises(InvalidArgument, match="beyond the policy"):
        Sandbox(**wider.sandbox_arguments(home))


def test_there_is_one_policy_the_last_that_is_named(home: dict[str, str], tmp_path: Path) -> None:
    file = written(home, FILE)
    (tmp_path / "p.yaml").write_text("limits: {wall: 7}\n")
    found = settings_of({**home, "CASEMATE_POLICY": str(tmp_path / "p.yaml")})
    values = in_force(found)
    assert values["limits.wall"] == (7, "p.yaml:1")
    assert values["limits.memory"] == (1 << 30, f"{file}:3")  # which that policy says nothing of
    assert values["namespace"][0] == "of-the-file"
    written(home, "policy: ../../p.yaml\nnamespace: a\n")
    assert in_force(settings_of(home))["limits.wall"] == (7, "p.yaml:1")
    written(home, "policy: ../../p.yaml\nlimits: {wall: 9}\n")
    with pytest.raises(InvalidArgument, match=r"config\.yaml:2: limits: the policy is in another file"):
        settings_of(home)


@pytest.mark.parametrize(("text", "told"), [
    ("namespce: a\n", "1: namespce: is not a known key; did you mean namespace?"),
    ("namespace: a\nmemory: 1\n", "2: memory: is not a known key; did you mean limits.memory?"),
    ("limits:\n  memry: 1\n", "2: limits.memry: is not a known key; did you mean memory?"),
    ("serve:\n  tool-set: a\n", "2: serve.tool-set: is not a known key; did you mean toolset?"),
    ("serve:\n  toolset: fll\n", "2: serve.toolset: 'fll' is not known; did you mean full?"),
    ("serve:\n  port: 70000\n", "2: serve.port: 70000 is out of range; give 0 to 65535"),
    ("serve:\n  port: '80'\n", "2: serve.port: '80' must be an integer"),
    ("serve:\n  embedded: 1\n", "2: serve.embedded: 1 must be true or false"),
    ("service: 3\n", "1: service: 3 must be a mapping of keys to values"),
    ("timeout: soon\n", "1: timeout: 'soon' must be a number"),
    ("limit:\n  wall: 1\n", "1: limit: is not a known key; did you mean limits?"),
    ("limits: 5\n", "1: limits: 5 must be a mapping of keys to values"),
    ("limits:\n  wall: long\n", "2: limits.wall: 'long' is not a number from 0.01 to"),
    ("limits:\n  memory: [1]\n", "2: limits.memory: [1] is not a size; write a number"),
    ("limits:\n  wall: -1\n", "2: limits.wall: -1 is not a number"),
    ("concurrency: 0\n", "1: concurrency: 0 is out of range; give 1 to 10000"),
    ("preload: numpy\n", "1: preload: 'numpy' must be a list"),
    ("environment: [numpy, 5]\n", "1: environment.1: 5 must be a text"),
    ("audit_max_size: much\n", "1: audit_max_size: 'much' is not a size"),
    ("audit_max_age: -1\n", "1: audit_max_age: -1 is out of range"),
    ("tools: {a: 5}\n", "1: tools.a: must be a mapping"),
    ("approve: yes\n", "1: approve: is not a known key"),
    ("default_backend: docker\n", "1: default_backend: is not a known key; use isolation here"),
    ("max_concurrent_jobs: 4\n", "1: max_concurrent_jobs: is not a known key; use concurrency here"),
    ("a: [\n", "2: is not YAML"),
    ("timeout: 1\ntimeout: 2\n", "2: the key 'timeout' stands twice"),
])  # fmt: skip
def test_what_is_wrong_in_a_file_is_told_with_its_line_and_the_nearest_right_key(
    home: dict[str, str], text: str, told: str
) -> None:
    file = written(home, text)
    with pytest.raises(InvalidArgument) as raised:
        settings_of(home)
    assert raised.value.problem.startswith(f"{file}:{told}")


def test_a_toml_file_is_read_too_and_two_files_are_one_too_many(home: dict[str, str]) -> None:
    file = written(home, 'namespace = "a"\n\n[service]\nidle_stop = 5\n', "config.toml")
    assert in_force(settings_of(home))["service.idle_stop"] == (5, f"{file}:4")
    written(home, "namespace: b\n")
    with pytest.raises(InvalidArgument, match="both exist"):
        settings_of(home)


def test_relative_paths_in_a_file_are_relative_to_it(home: dict[str, str]) -> None:
    file = Path(written(home, "trust: ca.pem\nvault: ~/secrets\noutput_dir: out\n"))
    found = settings_of(home)
    assert found.policy.trust == str(file.parent / "ca.pem")
    assert found.value("output_dir") == str(file.parent / "out")
    assert found.value("vault") == os.path.expanduser("~/secrets")


def test_the_file_is_the_one_that_is_named_and_never_one_of_the_working_folder(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "casemate.yaml").write_text("namespace: planted\n")
    (tmp_path / "config.yaml").write_text("namespace: planted\n")
    assert settings_of(home).file is None
    written(home, "namespace: mine\n")
    other = tmp_path / "other.yaml"
    other.write_text("namespace: other\n")
    assert settings_of({**home, "CASEMATE_CONFIG": str(other)}).value("namespace") == "other"
    assert settings_of({**home, "CASEMATE_CONFIG": "none"}).value("namespace") == "default"
    assert settings_of({**home, "XDG_CONFIG_HOME": str(tmp_path)}).value("namespace") == "default"
    with pytest.raises(InvalidArgument, match="cannot read"):
        settings_of({**home, "CASEMATE_CONFIG": str(tmp_path / "none.yaml")})


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_says_nothing_here(home: dict[str, str], mode: int) -> None:
    Path(written(home, FILE)).chmod(mode)
    with pytest.raises(InvalidArgument, match="other users can change"):
        settings_of(home)


def test_variables_are_read_by_the_form_of_their_keys(tmp_path: Path) -> None:
    found = keys.settings_in({
        "CASEMATE_WORKSPACE": str(tmp_path), "CASEMATE_ALLOWED_DOMAINS": "a.test, b.test", "CASEMATE_CONCURRENCY": "3",
        "CASEMATE_LIMITS_MEMORY": "64MiB", "CASEMATE_LIMITS_DISK": "1048576", "CASEMATE_LIMITS_CPU_TIME": "2.5",
        "CASEMATE_SECRET_TOKEN": "x", "CASEMATE_PRELOAD": "", "CASEMATE_ALLOW_LOCAL": "80, 81", "HOME": "/",
        "casemate_x": "y", "CASEMATE_CONFIG": "none", "CASEMATE_TOKEN": "t", "CASEMATE_SERVE_TOKEN": "t",
    })  # fmt: skip
    assert {name: one.value for name, one in found.items()} == {
        "workspace": str(tmp_path), "allowed_domains": ["a.test", "b.test"], "concurrency": 3, "preload": [],
        "limits.memory": "64MiB", "limits.disk": 1 << 20, "limits.cpu_time": 2.5, "allow_local": [80, 81],
    }  # fmt: skip


@pytest.mark.parametrize(("variable", "value"), [
    ("CASEMATE_", "x"), ("CASEMATE_CONCURRENCY", "many"), ("CASEMATE_WORKSPACE", ""),
    ("CASEMATE_LIMITS_RAM", "1"), ("CASEMATE_LIMITS_WALL", "soon"), ("CASEMATE_LIMITS_WALL", "-1"),
    ("CASEMATE_LIMITS_MEMORY", "lots"), ("CASEMATE_ALLOW_LOCAL", "80,x"), ("CASEMATE_APPROVE", "x"),
    ("CASEMATE_NETWORK", "privat"), ("CASEMATE_LIMITS_CPUS", "nan"), ("CASEMATE_SERVE_PORT", "1.5"),
    ("CASEMATE_SERVE_EMBEDDED", "2"),
    ("CASEMATE_AUDIT", "memory"), ("CASEMATE_POLICY", "/nowhere/p.yaml"), ("CASEMATE_CONFIG", ""),
])  # fmt: skip
def test_a_variable_that_is_wrong_or_unknown_is_named(home: dict[str, str], variable: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        settings_of({**home, variable: value})
    assert raised.value.argument == variable


def test_of_a_variable_that_is_unknown_the_nearest_is_told(home: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"did you mean CASEMATE_WORKSPACE\?"):
        settings_of({**home, "CASEMATE_WORKSPCE": "x"})


@pytest.mark.parametrize(("variable", "value", "key", "expected"), [
    ("CASEMATE_BACKEND", "process", "isolation", "native"),
    ("CASEMATE_MAX_CONCURRENT", "4", "concurrency", 4),
    ("CASEMATE_MAX_RAM_MB", "64", "limits.memory", 64 << 20),
    ("CASEMATE_MAX_CPU_CORES", "0.5", "limits.cpus", 0.5),
    ("CASEMATE_MAX_PROCESSES", "10", "limits.processes", 10),
    ("CASEMATE_SQLITE_PATH", "/x/a.db", "audit", "/x/a.db"),
    ("CASEMATE_AUDIT", "sqlite", "audit", None),
    ("CASEMATE_VAULT", "env", "vault", "memory"),
    ("CASEMATE_NETWORK", "none", "network", "none"),
    ("CASEMATE_NETWORK", "false", "network", "none"),
    ("CASEMATE_NETWORK", "true", "network", "public"),
    ("CASEMATE_TIMEOUT", "5", "timeout", 5.0),
    ("CASEMATE_SERVE_EMBEDDED", "yes", "serve.embedded", True),
    ("CASEMATE_SERVICE_LISTEN", "127.0.0.1:8, [::1]:8", "service.listen", ["127.0.0.1:8", "[::1]:8"]),
])  # fmt: skip
def test_variables_of_sandboxmcp_and_of_every_form_mean_what_they_say(
    home: dict[str, str], variable: str, value: str, key: str, expected: Any
) -> None:
    assert in_force(settings_of({**home, variable: value}))[key][0] == expected


def test_two_variables_that_say_the_same_are_one_too_many(home: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="sets the same key as CASEMATE_LIMITS_MEMORY"):
        settings_of({**home, "CASEMATE_MAX_RAM_MB": "64", "CASEMATE_LIMITS_MEMORY": "64MiB"})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"concurency": 1}, "concurency"),
        ({"serve.port": "80"}, "serve.port"),
        ({"limits.wall": 0.0}, "limits.wall"),
    ],
)
def test_an_argument_that_is_wrong_is_named(home: dict[str, str], arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        settings_of(home, arguments=arguments)
    assert raised.value.argument == named


def test_a_sandbox_from_variables_has_the_file_that_one_names_and_not_the_users(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(home, FILE)
    for name in [name for name in os.environ if name.startswith("CASEMATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", home["HOME"])
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("CASEMATE_AUDIT", home["HOME"] + "/audit.db")
    monkeypatch.setenv("CASEMATE_LIMITS_DISK", "1MiB")
    with sync.Sandbox.from_env() as sandbox:
        limits = sandbox.explain("1", timeout=None).limits
        assert (limits.wall, limits.disk) == (60, 1 << 20)
    monkeypatch.setenv("CASEMATE_CONFIG", file)
    with sync.Sandbox.from_env() as sandbox:
        limits = sandbox.explain("1", timeout=None).limits
        assert (limits.wall, limits.disk) == (120, 1 << 20)


def test_a_sandbox_from_a_file_takes_sections_of_the_service_too(home: dict[str, str]) -> None:
    with sync.Sandbox.from_file(written(home, FILE), audit=home["HOME"] + "/audit.db") as sandbox:
        assert sandbox.explain("1", timeout=None).limits.wall == 120


def test_the_table_has_every_key_of_a_file_and_every_limit_and_no_other() -> None:
    of_files = {*SandboxOptions.__annotations__, *FileOptions.__annotations__} - {"limits", "approve"}
    assert {name for name in KEYS if "." not in name} == of_files
    assert {name.partition(".")[0] for name in KEYS} == {*keys.FILE_KINDS}
    assert [key.name for key in LIMITS] == [f"limits.{one.name}" for one in fields(Limits)]
    named = [*VARIABLES, *(alias.variable for alias in ALIASES if alias.variable not in VARIABLES)]
    assert len(named) == len(set(named))
    assert {SECRET_PREFIX, INJECT_PREFIX} < set(config_files.LEFT_ALONE)


def test_the_defaults_of_the_table_are_those_of_a_sandbox() -> None:
    told = Sandbox.__init__.__kwdefaults__ or {}
    for name in settings._ARGUMENTS:
        if told.get(name) not in (None, ()):
            assert KEYS[name].default == told[name]


def test_nothing_secret_is_shown() -> None:
    from casemate.api.keys_page import format_value, without_secrets

    addresses = ["https://user:hunter2@pypi.test:8080/simple/?x=hunter2", "https://[hunter2"]
    servers = {"a": {"command": "x", "env": {"TOKEN": "hunter2"}}}
    places = ["https://pypi.test/?x=hunter2", "| tail /hunter2", "| 'hunter2", "|", "me:hunter2@pypi.test/"]
    hiding = [("package_indexes", addresses), ("audit_anchors", addresses + places), ("audit_anchors", addresses[0])]
    for key, value in (*hiding, ("tools", servers), ("tools", {"mcpServers": servers})):
        assert "hunter2" not in format_value(KEYS[key], value) + str(without_secrets(key, value))
    assert format_value(KEYS["tools"], servers) == "a"


@pytest.mark.parametrize("text", [
    "package_indexes: https://user:hunter2@pypi.test/\n", "package_indexes: [[hunter2]]\n", "tools: [hunter2]\n",
    "tools: {a: {env: hunter2}}\n",
])  # fmt: skip
def test_nothing_secret_is_in_an_error(home: dict[str, str], text: str) -> None:
    written(home, text)
    with pytest.raises(InvalidArgument) as raised:
        Sandbox(**settings_of(home).sandbox_arguments(home))
    assert "hunter2" not in str(raised.value)


def test_all_unknown_variables_are_named_at_once_with_what_to_use_here(home: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as raised:
        settings_of({**home, "CASEMATE_NAMESPCE": "a", "CASEMATE_WORKING_DIR": "/", "CASEMATE_MEMORY_MB": "5"})
    message = str(raised.value)
    assert "CASEMATE_MEMORY_MB: is not a known variable; use CASEMATE_LIMITS_MEMORY here" in message
    assert "CASEMATE_NAMESPCE: is not a known variable; did you mean CASEMATE_NAMESPACE?" in message
    assert "CASEMATE_WORKING_DIR: is not a known variable; use CASEMATE_WORKSPACE here" in message


def test_all_unknown_keys_of_a_file_are_named_at_once_with_what_to_use_here(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("max_ram_mb: 5\nnamespce: a\n")
    with pytest.raises(InvalidArgument) as raised:
        Sandbox.from_file(tmp_path / "c.yaml")
    assert "c.yaml:1: max_ram_mb: is not a known key; use limits.memory here" in str(raised.value)
    assert "c.yaml:2: namespce: is not a known key; did you mean namespace?" in str(raised.value)


LIMITS_OF_FILE = "limits: {memory: 256MiB, processes: 9%s}\n"


@pytest.mark.parametrize("more", ["", ", wall: 100"])
@pytest.mark.parametrize(("policy", "memory", "processes"), [
    (None, 256, 9), ("{}", 256, 9), ("limits: {memory: 1GiB}", 1024, 9), ("limits: {processes: 90}", 256, 90),
])  # fmt: skip
def test_each_limit_is_what_was_said_last_of_it(
    home: dict[str, str], tmp_path: Path, more: str, policy: str | None, memory: int, processes: int
) -> None:
    written(home, LIMITS_OF_FILE % more)
    given: dict[str, str] = {}
    if policy is not None:
        (tmp_path / "other.yaml").write_text(policy)
        given = {"policy": str(tmp_path / "other.yaml")}
    sandbox = sandbox_of({**home, "XDG_STATE_HOME": home["HOME"]}, "default", audit=str(tmp_path / "a.db"), **given)
    limits = sandbox.limits
    asyncio.run(sandbox.close())
    assert (limits.memory >> 20, limits.processes, limits.wall) == (memory, processes, 100 if more else 3600)


@pytest.mark.parametrize("way", ["variable", "file"])
def test_paths_of_srts_settings_start_at_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "private.txt").write_text("hunter2")
    (tmp_path / "srt.json").write_text('{"filesystem": {"denyRead": ["./private.txt"]}}')
    (tmp_path / "c.yaml").write_text("policy: srt.json\n")
    monkeypatch.setenv("CASEMATE_POLICY", str(tmp_path / "srt.json"))
    given: dict[str, Any] = {"audit": tmp_path / "audit.db", "workspace": folder}
    made = sync.Sandbox.from_env(**given) if way == "variable" else sync.Sandbox.from_file(tmp_path / "c.yaml", **given)
    with made as sandbox:
        execution = sandbox.run("print(open('private.txt').read())")
    assert not execution.ok
    assert "hunter2" not in execution.stdout
