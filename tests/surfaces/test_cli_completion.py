"""``casemate completion``, as each shell uses it."""

from __future__ import annotations

import subprocess

import pytest
from tests.surfaces.conftest import Cli


def completed_by_bash(cli: Cli, *words: str) -> list[str]:
    script = (
        'source completions; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _casemate; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    argv = ["bash", "-c", script, "bash", "casemate", *words]
    done = subprocess.run(argv, cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_and_options(cli: Cli) -> None:
    (cli.folder / "completions").write_bytes(cli("completion", "bash").stdout)
    assert completed_by_bash(cli, "do") == ["doctor"]
    assert "--toolset" in completed_by_bash(cli, "install", "cursor", "--to")
    assert {"show", "check"} <= set(completed_by_bash(cli, "policy", ""))
    assert completed_by_bash(cli, "run", "x.py", "--workspace-mode", "ov") == ["overlay"]
    assert {"--filter", "--quiet"} <= set(completed_by_bash(cli, "ps", "--"))
    assert {"--reset", "--processes"} <= set(completed_by_bash(cli, "limits", "--"))
    assert {"--processes", "--open-files"} <= set(completed_by_bash(cli, "sessions", "open", "--"))


@pytest.mark.needs("zsh")
def test_zsh_completes_commands(cli: Cli) -> None:
    (cli.folder / "_casemate").write_bytes(cli("completion", "zsh").stdout)
    script = "fpath=(. $fpath); autoload -Uz compinit && compinit -u -D && autoload +X _casemate && which _casemate"
    done = subprocess.run(
        ["zsh", "-fc", script], cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=True
    )
    assert "doctor" in done.stdout


@pytest.mark.needs("fish")
def test_fish_completes_commands_and_options(cli: Cli) -> None:
    (cli.folder / "casemate.fish").write_bytes(cli("completion", "fish").stdout)
    script = "source casemate.fish; complete -C 'casemate do'; complete -C 'casemate policy '"
    done = subprocess.run(
        ["fish", "-Nc", script], cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=True
    )
    names = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert names[0] == "doctor"
    assert {"show", "check"} <= set(names)


def test_another_shell_is_refused(cli: Cli) -> None:
    done = cli("completion", "tcsh")
    assert (done.code, done.stdout) == (2, b"")
