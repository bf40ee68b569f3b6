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


def test_bash_completes_names_of_files_where_there_is_nothing_else(cli: Cli) -> None:
    (cli.folder / "completions").write_bytes(cli("completion", "bash").stdout)
    done = subprocess.run(
        ["bash", "-c", "source completions; complete -p casemate"], cwd=cli.folder, env=cli.env, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert completed_by_bash(cli, "run", "prog") == []
    assert done.stdout == "complete -o bashdefault -o default -F _casemate casemate\n"


# Types a line and a tab into a zsh with a terminal of its own, and prints what the line has become.
TYPED_INTO_ZSH = """
zmodload zsh/zpty
zpty inner zsh -f -i
zpty -w inner "PS1=; $1"
zpty -w inner 'told() { print -r -- "<$BUFFER>"; BUFFER=; zle .accept-line }; zle -N told; bindkey "^X" told'
zpty -w inner 'print begun"#"'
zpty -r -m inner said '*begun#*'
zpty -w -n inner "$2"$'\\t\\x18'
zpty -r -m inner said '*<casemate*>*'
print -r -- "${${said##*<}%%>*}"
"""


@pytest.mark.needs("zsh")
@pytest.mark.parametrize("begin", ["fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D",
                                   "autoload -Uz compinit; compinit -u -D; source ./_casemate"])  # fmt: skip
def test_zsh_completes_commands_values_and_names_of_files(cli: Cli, begin: str) -> None:
    (cli.folder / "_casemate").write_bytes(cli("completion", "zsh").stdout)
    (cli.folder / "program.py").touch()
    for line, completed in (("doct", "doctor "), ("run progr", "run program.py "),
                            ("serve --toolset sandb", "serve --toolset sandboxmcp ")):  # fmt: skip
        argv = ["zsh", "-fc", TYPED_INTO_ZSH, "zsh", begin, f"casemate {line}"]
        done = subprocess.run(argv, cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == f"casemate {completed}\n"


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
