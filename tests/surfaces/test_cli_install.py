"""``casemate install``: other programs' files get one entry, and are otherwise as they were."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.structure import ROOT
from tests.surfaces.conftest import At, Cli

from casemate.surfaces.clients.entries import change
from casemate.surfaces.clients.known import CLIENTS, Client

FILES = sorted(name for name in CLIENTS if name != "codex")


@pytest.fixture
def cli(in_process: Cli) -> Cli:
    """The command, called in this process."""
    return in_process


def place(cli: Cli, name: str) -> Path:
    client = CLIENTS[name]
    return Path(cli.env["HOME"], ".config" if client.base == "config" else "", client.user)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def command(entry: Any) -> list[str]:
    return [entry["command"], *entry["args"]]


def read(path: Path, client: Client) -> Any:
    text = path.read_text()
    return (tomllib.loads(text) if client.is_toml else json.loads(text))[client.key]


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_each_client_gets_a_command_that_works(cli: Cli, name: str) -> None:
    client, path = CLIENTS[name], place(cli, name)
    done = cli("install", name, "--yes", "--toolset", "full")
    assert (done.code, path.stat().st_mode & 0o777) == (0, 0o600), done.stderr
    entry = read(path, client)["casemate"]
    argv = command(entry)
    assert os.path.isabs(argv[0])
    assert argv[-3:] == ["serve", "--toolset", "full"]
    hostile = cli.folder / "repository"
    for module in ("casemate", "json"):
        written(hostile / f"{module}.py", "raise SystemExit('planted')")
    started = subprocess.run(
        [*argv[:-3], "--version"], env=cli.env, cwd=hostile, capture_output=True, text=True, check=True
    )
    assert started.stdout.startswith("casemate ")
    again = cli("install", name, "--yes", "--toolset", "full")
    assert (again.code, again.stdout) == (0, b"")
    assert b"nothing to do" in again.stderr
    assert cli("install", name, "--yes", "--remove").code == 0
    assert "casemate" not in path.read_text()


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_what_else_is_in_a_file_stays_as_it_was(cli: Cli, name: str) -> None:
    client = CLIENTS[name]
    before = '{\n  "theme": "dark",\n  "' + client.key + '": {\n    "other": {"command": "x"}\n  },\n  "n": 1.50\n}\n'
    path = written(place(cli, name), before)
    path.chmod(0o640)
    assert cli("install", name, "--yes").code == 0
    after = path.read_text()
    assert list(read(path, client)) == ["other", "casemate"]
    head = before.index('{"command": "x"}') + len('{"command": "x"}')
    assert (after[:head], after[-len(before[head:]) :]) == (before[:head], before[head:])
    assert path.stat().st_mode & 0o777 == 0o640
    kept = path.with_name(path.name + ".before-casemate")
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == (before, 0o640)
    assert cli("install", name, "--yes", "--remove").code == 0
    assert path.read_text() == before
    assert path.with_name(path.name + ".before-casemate.1").read_text() == after


def test_a_file_with_comments_is_left_alone_and_what_to_add_is_shown(cli: Cli) -> None:
    before = '// mine\n{\n  "vim_mode": true // always\n}\n'
    path = written(place(cli, "zed"), before)
    done = cli("install", "zed", "--yes")
    assert (done.code, path.read_text()) == (2, before)
    assert b"without comments" in done.stderr
    shown = done.stderr.decode().partition("by hand:\n")[2]
    assert json.loads(shown)["context_servers"]["casemate"]["source"] == "custom"
    removed = cli("install", "zed", "--yes", "--remove")
    assert (removed.code, path.read_text()) == (2, before)
    assert b"Remove casemate from context_servers by hand" in removed.stderr


@pytest.mark.full
def test_tables_of_codex_stay(cli: Cli) -> None:
    before = '# mine\nmodel = "x" # this one\n\n[mcp_servers.other]\ncommand = "y"\n'
    path = written(place(cli, "codex"), before)
    assert cli("install", "codex", "--yes").code == 0
    assert path.read_text().startswith(before)
    assert cli("install", "codex", "--yes", "--toolset", "ipybox").code == 0
    assert tomllib.loads(path.read_text())["mcp_servers"]["casemate"]["args"] == ["serve", "--toolset", "ipybox"]
    assert cli("install", "codex", "--yes", "--remove").code == 0
    assert path.read_text().strip() == before.strip()


@pytest.mark.parametrize(("name", "text", "told"), [
    ("cursor", '{\n  "mcpServers": {\n    "a": 1\n    "b": 2\n  }\n}', "line 4 column 5"),
    ("cursor", '{"mcpServers": []}', "mcpServers is expected to be an object"),
    ("codex", 'a = 1\nb = = 2\n', "line 2, column 5"),
])  # fmt: skip
def test_a_broken_file_is_told_with_line_and_column_and_left_alone(cli: Cli, name: str, text: str, told: str) -> None:
    path = written(place(cli, name), text)
    done = cli("install", name, "--yes")
    assert done.code == 2
    assert f"{path} is unchanged: " in done.stderr.decode()
    assert told in done.stderr.decode()
    assert path.read_text() == text
    assert os.listdir(path.parent) == [path.name]


def test_a_link_is_followed_and_stays_a_link(cli: Cli) -> None:
    real = written(Path(cli.env["HOME"], "dotfiles", "cursor.json"), "{}")
    link = place(cli, "cursor")
    link.parent.mkdir()
    link.symlink_to(real)
    assert cli("install", "cursor", "--yes").code == 0
    assert link.is_symlink()
    assert "casemate" in json.loads(real.read_text())["mcpServers"]


@pytest.mark.full
def test_a_project_gets_its_own_file_and_its_links_lead_nowhere_else(cli: Cli) -> None:
    assert cli("install", "vscode", "--scope", "project", "--yes").code == 0
    path = cli.folder / ".vscode" / "mcp.json"
    assert json.loads(path.read_text())["servers"]["casemate"]["type"] == "stdio"
    secret = written(Path(cli.env["HOME"], "settings.json"), "{}")
    path.unlink()
    path.symlink_to(secret)
    done = cli("install", "vscode", "--scope", "project", "--yes")
    assert (done.code, secret.read_text()) == (2, "{}")
    assert b"leads out of the project" in done.stderr
    assert cli("install", "claude-desktop", "--scope", "project", "--yes").code == 2


def test_print_shows_the_entry_and_writes_nothing(cli: Cli) -> None:
    done = cli("install", "claude-desktop", "--print", "--name", "sandbox")
    assert command(json.loads(done.stdout)["mcpServers"]["sandbox"])[-1] == "serve"
    assert tomllib.loads(cli("install", "codex", "--print").stdout.decode())["mcp_servers"]["casemate"]
    assert not place(cli, "claude-desktop").exists()


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 2), (b"\n", 2)])
def test_what_changes_is_shown_and_asked_about(cli: Cli, at_terminal: At, answer: bytes, code: int) -> None:
    path = written(
        place(cli, "cursor"), '{\n  "mcpServers": {\n    "a": {"env": {"T": "hunter2"}},\n    "b": 1\n  }\n}\n'
    )
    before = path.read_text()
    at = at_terminal("install", "cursor")
    at.until(b"[y/N] ")
    at.type(answer)
    done = at.done()
    assert done.code == code
    assert (b"casemate: nothing was changed" in done.stdout) == (code != 0)
    assert b'+    "casemate": {' in done.stdout
    assert b"hunter2" not in done.stdout
    assert (path.read_text() == before) == (code != 0)


def test_where_nobody_can_be_asked_nothing_changes(cli: Cli) -> None:
    done = cli("install", "cursor")
    assert done.code == 2
    assert b"--yes" in done.stderr
    assert not place(cli, "cursor").exists()


@pytest.mark.parametrize(("arguments", "told"), [
    (("cursr",), b"did you mean cursor?"), (("cursor", "--name", "a b"), b"is not a valid name"),
    (("cursor", "--toolset", "all"), b"toolset"),
])  # fmt: skip
def test_what_is_wrong_is_named(cli: Cli, arguments: tuple[str, ...], told: bytes) -> None:
    done = cli("install", *arguments, "--yes")
    assert done.code == 2
    assert told in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(("name", "program", "added", "removed"), [
    ("claude-code", "claude", ["add-json", "--scope", "user", "casemate", '{"type": "stdio", "command": '],
     ["remove", "--scope", "user", "casemate"]),
    ("gemini-cli", "gemini", ["add", "--scope", "user", "casemate", "/"], ["remove", "--scope", "user", "casemate"]),
    ("codex", "codex", ["add", "casemate", "--", "/"], ["remove", "casemate"]),
])  # fmt: skip
def test_a_client_that_has_a_command_for_it_is_changed_by_that(
    cli: Cli, name: str, program: str, added: list[str], removed: list[str]
) -> None:
    """A stand-in on PATH writes down what it is called with; tests of the real ones need their downloads."""
    folder = Path(cli.env["HOME"], "bin")
    stand_in = written(
        folder / program, f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open('argv', 'w'))\n"
    )
    stand_in.chmod(0o755)
    cli = Cli(cli.folder, {**cli.env, "PATH": f"{folder}:{cli.env['PATH']}"})
    assert cli("install", name, "--yes").code == 0
    argv = json.loads((cli.folder / "argv").read_text())
    assert argv[: len(added)] == ["mcp", *added[:-1]]
    assert argv[len(added)].startswith(added[-1])
    assert "serve" in argv[-1]
    assert not place(cli, name).exists()
    assert cli("install", name, "--yes", "--remove").code == 0
    assert json.loads((cli.folder / "argv").read_text()) == ["mcp", *removed]
    assert cli("install", name, "--yes", "--scope", "project").code == 0
    assert "casemate" in read(cli.folder / str(CLIENTS[name].project), CLIENTS[name])


@pytest.mark.parametrize("marked", ["cache", "cache/environment"])
def test_an_installation_in_a_cache_is_started_by_uvx_and_an_environment_of_uv_is_not(
    cli: Cli, tmp_path: Path, marked: str
) -> None:
    cached = tmp_path / "cache" / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", cached], check=True)
    (tmp_path / marked / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55")
    uvx = written(tmp_path / "tools" / "uvx", "#!/bin/sh\n")
    uvx.chmod(0o755)
    site = next(Path(cached, "lib").glob("python*/site-packages"))
    site.joinpath("others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    done = subprocess.run(
        [cached / "bin" / "python", "-m", "casemate", "install", "cursor", "--print"],
        env={**cli.env, "PATH": f"{uvx.parent}:{cli.env['PATH']}"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    written_command = command(json.loads(done.stdout)["mcpServers"]["casemate"])
    fallback = [str(cached / "bin" / "python"), "-P", "-m", "casemate", "serve"]
    again = [str(uvx), "--from", ROOT.as_uri(), "casemate", "serve"]  # an index may have another casemate
    assert written_command == (again if marked == "cache" else fallback)
    assert shutil.which("casemate", path=str(cached / "bin")) is None


def test_an_installation_that_does_not_start_is_not_written_down(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", broken], check=True)
    site = next(Path(broken, "lib").glob("python*/site-packages"))
    site.joinpath("others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    written(broken / "bin" / "casemate", "#!/bin/sh\necho no such interpreter >&2; exit 1\n").chmod(0o755)
    done = subprocess.run(
        [broken / "bin" / "python", "-m", "casemate", "install", "cursor", "--yes"],
        env=cli.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 69, done.stderr
    assert "does not start: no such interpreter" in done.stderr
    assert not place(cli, "cursor").exists()


@pytest.mark.full
@pytest.mark.parametrize("name", ["cursor", "codex"])
def test_doctor_tells_of_an_entry_that_loads_modules_from_whatever_folder(cli: Cli, name: str) -> None:
    client = CLIENTS[name]
    assert cli("install", name, "--yes").code == 0
    assert str(place(cli, name)) not in cli("doctor").stdout.decode()
    entry = {"command": "/usr/bin/python3", "args": ["-m", "casemate", "serve"]}
    text = json.dumps({client.key: {"casemate": entry}})
    if client.is_toml:
        text = change("", client.key, "casemate", entry, is_toml=True)
    written(place(cli, name), text)
    told = cli("doctor").stdout.decode()
    assert f"{place(cli, name)}: the entry casemate" in told
    assert f"casemate install {name} --name casemate" in told
