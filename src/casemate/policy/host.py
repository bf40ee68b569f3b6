"""The commands and files of the host that a policy opens to agents, and the parser of commands. Pure.

Annotations here are evaluated at import, for ``policy.keys`` reads them: no ``from __future__ import annotations``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from casemate.errors import InvalidArgument
from casemate.model.operation import Between, Most
from casemate.visible import is_plain

USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
MOST_WORDS, MOST_WORD_BYTES = 1000, 64 << 10  # in one command
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}\Z")
_SHELL = re.compile(r"[;&|<>`$\n\r{}*?'\"\\~\[\]]")  # shell syntax; no shell runs
# Variables of each command in addition to the policy's. They keep the user's settings from starting programs.
ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_CONFIG_COUNT": "1",  # runs no hooks
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": "/dev/null",
    "GIT_ALLOW_PROTOCOL": "https:http:ssh:git",  # a local repository could run its own hooks and filters
}
NO_REPOSITORY = b"fatal: --local can only be used inside a git repository\n"  # git's message
_SUBMODULE = b"160000 "  # the mode of a commit of another repository (gitformat-index(5))
# Keys of a repository's configuration (git-config(1)) that start no program. Any other key refuses the command.
HARMLESS_GIT_KEY = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|"
    r"safecrlf|quotepath|compression|abbrev)|remote\..*\.(url|pushurl|fetch|tagopt|prune|skipdefaultupdate)|"
    r"branch\..*\.(remote|merge|rebase|description)|user\.(name|email)|submodule\..*\.(url|active)|"
    r"(pull|push|fetch|init|color|log|status|diff)\.(rebase|ff|default|prune|defaultbranch|ui|date|showstash|short|"
    r"renames|algorithm)|extensions\.(objectformat|refstorage)",
    re.IGNORECASE,
)


# Files that control a program and that it also looks for above its working folder, where the policy opens nothing.
# Make, for example, looks only in its own folder.
_FROM_ABOVE: Mapping[str, str] = {
    "cargo rustc rustup": ".cargo rust-toolchain rust-toolchain.toml Cargo.toml",  # compilers, wrappers, build scripts
    "npm npx corepack": "package.json node_modules .npmrc",  # scripts, and the shell that runs them
    "pnpm": "package.json node_modules .npmrc .pnpmfile.cjs pnpm-workspace.yaml",
    "yarn": "package.json node_modules .yarnrc .yarnrc.yml .pnp.cjs",  # yarnPath is a program
    "bun deno": "package.json node_modules bunfig.toml deno.json deno.jsonc",
    "jest vitest": "package.json node_modules jest.config.js vitest.config.ts vite.config.ts",
    "pre-commit": ".pre-commit-config.yaml .pre-commit-hooks.yaml",
    "pytest py.test": "conftest.py pytest.ini .pytest.ini pytest.toml .pytest.toml tox.ini setup.cfg pyproject.toml",
    "tox nox": "tox.ini tox.toml setup.cfg pyproject.toml noxfile.py",
    "pip uv uvx poetry hatch pdm": "pyproject.toml uv.toml hatch.toml .python-version",  # build backends
    "bundle gem rake": "Gemfile gems.rb .bundle Rakefile rakefile Rakefile.rb rakefile.rb",
    "just task": "justfile Justfile .justfile Taskfile.yml Taskfile.yaml",
    "gradle mvn bazel": "settings.gradle settings.gradle.kts .mvn WORKSPACE WORKSPACE.bazel MODULE.bazel",
    "go composer": "go.mod go.work composer.json vendor",
    "hg": ".hg",
    "jj": ".jj",
}
_STARTS_GIT = frozenset(("git", "pre-commit", "tig", "gitk", "gh", "glab", "jj", "scalar"))


def files_above(program: str) -> tuple[str, ...]:
    """Return the names of files in parent folders that control ``program``."""
    return tuple(file for names, files in _FROM_ABOVE.items() if program in names.split() for file in files.split())


def starts_git(program: str) -> bool:
    """Whether ``program`` is git, a part of it, or runs it in the folder."""
    return program in _STARTS_GIT or program.startswith("git-")


@dataclass(frozen=True, slots=True)
class HostRoot:
    """A folder of the host, as an absolute path, that agents may read, and with ``write`` may ask to write."""

    path: str
    write: bool = False


@dataclass(frozen=True, slots=True)
class HostTerms:
    """``host:`` of a policy."""

    folder: str | None = None  # where commands run; None allows none
    path: Annotated[tuple[str, ...], Most(20)] = USUAL_PATH  # where programs are found
    env: Annotated[Mapping[str, str], Most(100)] = field(default_factory=dict)  # of each command
    timeout: Annotated[float, Between(0.001, 3600)] = 60.0  # seconds
    output: Annotated[int, Between(1, 16 << 20)] = 1 << 20  # bytes kept of each stream
    roots: Annotated[tuple[HostRoot, ...], Most(100)] = ()
    where: str = ""  # its place in the file


def words_of(command: object) -> tuple[str, ...]:
    """Return the words of a command, a list or a line without shell syntax. Raises ``InvalidArgument``."""
    if isinstance(command, str):
        if found := _SHELL.search(command):
            raise InvalidArgument(
                "command",
                f"{found[0]!r} is for a shell, but no shell reads this",
                remediation='Give a list of words: ["git", "log", "-n", "3"]. One command at a time.',
            )
        command = command.split()
    if not isinstance(command, Sequence) or not all(isinstance(word, str) for word in command):
        raise InvalidArgument("command", "is not a list of words, such as ['git', 'status']")
    words = tuple(command)
    if not words or not _PROGRAM.match(words[0]):
        shown = repr(words[0])[:100] if words else "nothing"
        raise InvalidArgument(
            "command",
            f"{shown} is not a program's name: give a bare name such as 'git', which is found in fixed folders",
        )
    if words[0] == "git" and words[1:] and words[1].startswith("-"):
        raise InvalidArgument(
            "command",
            f"{words[1][:100]!r}: options before git's command can select other folders and settings",
            remediation='Begin with the command: ["git", "status"].',
        )
    if any("\0" in word for word in words):
        raise InvalidArgument("command", "has a NUL character, which a command cannot contain")
    size = sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
    if len(words) > MOST_WORDS or size > MOST_WORD_BYTES:
        raise InvalidArgument("command", f"has more than {MOST_WORDS} words or {MOST_WORD_BYTES >> 10} KiB")
    if not all(is_plain(word.replace("\n", " ").replace("\t", " "), spaces=True) for word in words):
        raise InvalidArgument("command", "has characters that an approver could not see")
    return words


def risk_of_keys(listing: bytes) -> str:
    """Return why git may start programs for configuration keys (``git config --null --name-only --list``)."""
    keys = listing.decode("utf-8", "replace").split("\0")
    risky = dict.fromkeys(key for key in keys if key and not HARMLESS_GIT_KEY.fullmatch(key))
    return f"{', '.join([*risky][:10])} in its configuration may start programs" if risky else ""


def risk_of_index(listing: bytes) -> str:
    """Return why it may start programs for its index (``git ls-files --stage``), if it may."""
    is_there = b"\n" + _SUBMODULE in b"\n" + listing
    return "it has submodules, and their configuration may start programs" if is_there else ""
