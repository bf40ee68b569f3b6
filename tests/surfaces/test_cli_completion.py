"""``casemate completion``, as each shell uses it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess

import pytest
from tests.surfaces.conftest import Cli


@pytest.fixture
def cli(in_process: Cli) -> Cli:
    """The command, called in this process."""
    return in_process


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


# Control-X prints what the line has become.
BEGIN_BASH = r"""PS1=; source completions; bind -x '"\C-x": printf "<%s>\n" "$READLINE_LINE"'; echo begun"#"
"""


def typed_into_bash(cli: Cli, line: str) -> str:
    """What a line has become after a tab, in a bash with a terminal of its own."""
    ours, theirs = pty.openpty()
    argv, env = ["bash", "--norc", "--noprofile", "-i"], {**cli.env, "TERM": "dumb"}
    try:
        bash = subprocess.Popen(
            argv, cwd=cli.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        try:
            os.write(ours, BEGIN_BASH.encode())
            said_until(ours, rb"begun#")
            os.write(ours, f"{line}\t\x18".encode())
            return said_until(ours, rb"<(casemate[^>]*)>")[1].decode()
        finally:
            bash.kill()
            bash.wait()
    finally:
        os.close(ours)
        os.close(theirs)


def said_until(terminal: int, what: bytes) -> re.Match[bytes]:
    said = b""
    while not (found := re.search(what, said)):
        assert select.select([terminal], [], [], 60)[0], said
        said += os.read(terminal, 1 << 16)
    return found


@pytest.mark.full
@pytest.mark.parametrize(("line", "completed"), [
    ("doct", "doctor "), ("run progr", "run program.py "), ("serve --toolset sandb", "serve --toolset sandboxmcp "),
])  # fmt: skip
def test_bash_completes_commands_values_and_names_of_files(cli: Cli, line: str, completed: str) -> None:
    (cli.folder / "completions").write_bytes(cli("completion", "bash").stdout)
    (cli.folder / "program.py").touch()
    assert typed_into_bash(cli, f"casemate {line}") == f"casemate {completed}"


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
