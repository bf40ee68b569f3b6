"""Commands in rules: lists of whole words, never text that a shell would read. Pure.

``*`` is exactly one word, ``**`` at the end any number of them. In a rule that allows, neither stands for an option (a
word that begins with ``-``), for one with ``..`` in it, or for one with control characters. In a rule that denies or
asks they stand for anything. The program itself is always named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from casemate.policy.patterns import is_plain_text

# Programs whose job is, or one of whose options or inputs can be, to run another program, or to write where they like.
# A rule with a wildcard for one of them would allow anything; exact commands are fine.
_PROGRAMS = """
    sh bash dash zsh fish ksh mksh csh tcsh ash busybox toybox env xargs find fd fdfind nice nohup timeout time setsid
    stdbuf ionice chrt taskset flock parallel entr watch strace ltrace gdb lldb valgrind perf script expect screen tmux
    sudo su doas pkexec runuser chroot unshare nsenter systemd-run systemctl journalctl service at batch crontab
    ssh scp sftp rsync ftp telnet nc ncat netcat socat openssl gpg ip tcpdump nmap curl wget
    awk gawk mawk nawk sed ed ex vi vim nvim view emacs nano less more most man info bat delta rg ag ack fzf ls
    tar cpio zip unzip 7z sort split dd tee install cp mv ln m4
    python pypy perl ruby node nodejs deno bun php lua luajit tclsh wish r rscript julia java javac jshell scala kotlin
    groovy dotnet mono ghc runghc ocaml erl elixir iex guile racket clojure osascript pwsh powershell
    npm npx pnpm yarn corepack pip pipx uv uvx poetry hatch pdm conda mamba gem bundle rake cargo rustup rustc go
    composer mvn gradle ant sbt make gmake cmake ninja meson bazel buck just task tox nox pytest pre-commit
    git hg svn gh glab docker podman nerdctl buildah skopeo kubectl helm crictl ctr runc lxc lxd incus vagrant ansible
    ansible-playbook terraform tofu packer aws gcloud az qemu virsh wine flatpak snap apt apt-get dpkg rpm dnf yum apk
    pacman brew nix guix psql mysql mariadb sqlite sqlite3 redis-cli mongosh mail mutt sendmail
    casemate ld.so ld-linux.so ld-linux-x86-64.so
"""
_RUNNERS = frozenset(_PROGRAMS.split())
_VERSION = re.compile(r"[-.]?[0-9][0-9.]*\Z")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./*-]+\Z")
_MOST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A pattern for an argument vector: ``words``, each literal but for ``*`` and a last ``**``."""

    words: tuple[str, ...]

    def covers(self, argv: object, *, narrowly: bool) -> bool:
        """Whether ``argv`` (a list of words) is such a command; ``narrowly`` as rules that allow read patterns."""
        if not isinstance(argv, list | tuple) or not argv or not all(isinstance(word, str) for word in argv):
            return not narrowly  # what is no command cannot be told from one that is meant
        fixed, rest = (self.words[:-1], True) if self.words[-1] == "**" else (self.words, False)
        if len(argv) < len(fixed) or (len(argv) > len(fixed) and not rest):
            return False
        heads = all(
            _stands_for(word, narrowly) if pattern == "*" else word == pattern
            for pattern, word in zip(fixed, argv, strict=False)
        )
        return heads and all(_stands_for(word, narrowly) for word in argv[len(fixed) :])

    def __str__(self) -> str:
        return " ".join(self.words)


def command(given: object, *, narrowly: bool) -> CommandPattern:
    """The command pattern that a rule gives, as a list of words or as plain words with spaces between them.

    Raises ``ValueError`` saying what is wrong with it: empty, a shell's syntax, a program that is no name, ``*`` within
    a word; and where ``narrowly`` (a rule that allows) a wildcard for a program that can run programs.
    """
    words = _words(given)
    if not words or not words[0].strip():
        raise ValueError("names no program; write a list of words such as [wc, -l, '*']")
    program = words[0]
    if "*" in program or not is_plain_text(program) or program.startswith("-"):
        raise ValueError(f"{program!r} is no program's name; the first word is always named")
    for place, word in enumerate(words):
        if "**" in word and (word != "**" or place != len(words) - 1):
            raise ValueError("'**' is a word of its own, and the last")
        if "*" in word and word not in ("*", "**"):
            raise ValueError(f"{word!r} has a wildcard within a word; '*' is one whole word")
    if narrowly and any(word in ("*", "**") for word in words) and runs_programs(program):
        raise ValueError(
            f"is too wide: {program!r} can run other programs or write anywhere, so a wildcard after it "
            "allows anything; write the whole command"
        )
    return CommandPattern(words)


def runs_programs(program: str) -> bool:
    """Whether ``program``, by its name, whatever its folder and version, is known to be able to run another."""
    name = program.rpartition("/")[2].casefold()
    return bool({name, _VERSION.sub("", name), _VERSION.sub("", name.removesuffix(".exe"))} & _RUNNERS)


def _words(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        words = given.split()
        bad = next((word for word in words if not _PLAIN_WORD.match(word)), None)
        if bad is not None:
            raise ValueError(f"{bad!r} is more than a plain word, and no shell reads it; write a list of words")
        return tuple(words)
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        raise ValueError(f"{given!r} is no command; write a list of words such as [wc, -l, '*']")
    if len(given) > _MOST_WORDS:
        raise ValueError(f"has more than {_MOST_WORDS} words")
    return tuple(given)


def _stands_for(word: str, narrowly: bool) -> bool:
    """Whether a wildcard stands for ``word``."""
    return not narrowly or (
        bool(word) and not word.startswith("-") and ".." not in word.split("/") and is_plain_text(word)
    )
