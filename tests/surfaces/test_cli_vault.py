"""``casemate vault``, and secrets of ``casemate run``, as processes of their own."""

from __future__ import annotations

import os
import pty
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

S = "hunter2 & hunter2"
Casemate = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Variables of a user who has nothing yet."""
    return {
        **os.environ,
        "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }  # fmt: skip


@pytest.fixture
def casemate(environ: dict[str, str]) -> Casemate:
    """Runs the command line."""

    def run(*arguments: str, given: str = "", code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "casemate", *arguments], input=given, env={**environ, **more}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    return run


def test_va_13_a_secret_that_was_piped_in_is_kept_and_nowhere_else(casemate: Casemate, tmp_path: Path) -> None:
    done = casemate("vault", "set", "TOKEN", given=f"{S}\n")
    assert (done.stdout, done.stderr) == ("", "")
    assert casemate("vault", "list").stdout == "TOKEN\n"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not [path for path in files if S.encode() in path.read_bytes()]
    private = [path for path in tmp_path.rglob("*") if path != tmp_path]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in private} == {0}


def test_va_13_a_secret_that_is_typed_is_not_shown(environ: dict[str, str], casemate: Casemate) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "casemate", "vault", "set", "TOKEN"], stdin=theirs, stdout=theirs, stderr=theirs,
        env=environ, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"TOKEN: " not in seen:
        seen += os.read(ours, 1024)
    os.write(ours, f"{S}\n".encode())
    try:
        while piece := os.read(ours, 1024):
            seen += piece
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    assert child.wait(60) == 0
    assert S.encode() not in seen
    assert casemate("vault", "list").stdout == "TOKEN\n"


def test_where_a_secret_may_be_put_in_is_set_and_listed(casemate: Casemate, tmp_path: Path) -> None:
    casemate("vault", "set", "PLAIN", given=S)
    hosts = ("--inject-host", "api.example.org", "--inject-host", "x.example.org:8443")
    done = casemate("vault", "set", "TOKEN", *hosts, "--header", "X-Api-Key", "--format", "{}", given=S)
    assert (done.stdout, done.stderr) == ("", "")
    casemate("vault", "set", "USUAL", *hosts[:2], given=S)
    assert casemate("vault", "list").stdout.splitlines() == [
        "PLAIN",
        "TOKEN\tapi.example.org x.example.org:8443  X-Api-Key: {}",
        "USUAL\tapi.example.org  Authorization: Bearer {}",
    ]
    program = tmp_path / "p.py"
    program.write_text("import os; print(os.environ['TOKEN'])")
    told = casemate("run", str(program), "--secret", "TOKEN").stdout
    assert len(told) == max(16, len(S)) + 1
    assert S not in told
    assert "[secret:" not in told


def test_where_a_secret_cannot_be_put_in_is_refused_before_its_value_is_kept(casemate: Casemate) -> None:
    for options, named in (
        (["--inject-host", "*.example.org"], "--inject-host"),
        (["--inject-host", "127.0.0.1"], "--inject-host"),
        (["--inject-host", "api.example.org", "--header", "Host"], "--header"),
        (["--inject-host", "api.example.org", "--format", "x"], "--format"),
        (["--header", "X-Api-Key"], "--header"),
        (["--format", "{}"], "--format"),
    ):
        said = casemate("vault", "set", "TOKEN", *options, given=S, code=2).stderr
        assert named in said, options
        assert "Unknown option" not in said, options
    assert casemate("vault", "list").stdout == ""


def test_a_value_is_no_argument(casemate: Casemate) -> None:
    casemate("vault", "set", "TOKEN", S, code=2)
    assert casemate("vault", "list").stdout == ""


def test_namespaces_are_apart(casemate: Casemate) -> None:
    casemate("vault", "set", "TOKEN", "--namespace", "team", given=S)
    assert casemate("vault", "list").stdout == ""
    assert casemate("vault", "list", "--namespace", "team").stdout == "TOKEN\n"
    assert "no secret TOKEN" in casemate("vault", "delete", "TOKEN", code=2).stderr
    casemate("vault", "delete", "TOKEN", "--namespace", "team")
    assert casemate("vault", "list", "--namespace", "team").stdout == ""


def test_a_program_gets_the_secrets_that_are_named(casemate: Casemate, tmp_path: Path) -> None:
    casemate("vault", "set", "TOKEN", given=S)
    program = tmp_path / "p.py"
    program.write_text("import os; print(os.environ['TOKEN'], os.environ['OTHER'], len(os.environ['TOKEN']))")
    arguments = ("run", str(program), "--secret", "TOKEN", "--secret", "OTHER")
    others = {"CASEMATE_SECRET_DEFAULT_OTHER": "another-secret"}
    assert casemate(*arguments, **others).stdout == f"[secret:TOKEN] [secret:OTHER] {len(S)}\n"
    told = casemate(*arguments, "--format", "json", **others).stdout
    assert S not in told
    assert "[secret:TOKEN]" in told
    plan = casemate(*arguments, "--explain", **others).stdout
    assert S not in plan
    assert "another-secret" not in plan
    assert "TOKEN" in plan
    assert "--secret: there is no secret OTHER" in casemate(*arguments, code=2).stderr


def test_va_19_a_vault_that_was_changed_is_refused_and_recorded(casemate: Casemate, tmp_path: Path) -> None:
    casemate("vault", "set", "TOKEN", given=S)
    vault = tmp_path / "state" / "casemate" / "vault" / "secrets"
    data = bytearray(vault.read_bytes())
    data[-1] ^= 1
    vault.write_bytes(data)
    done = casemate("run", "-", "--secret", "TOKEN", given="print(1)", code=69)
    assert "is damaged" in done.stderr
    database = sqlite3.connect(tmp_path / "state" / "casemate" / "audit.db")
    rows = [detail for kind, detail in database.execute("SELECT kind, detail FROM record") if kind == "vault"]
    database.close()
    assert '"action":"set"' in rows[0]
    assert '"reason":"damaged"' in rows[-1]
