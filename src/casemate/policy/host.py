"""What of the host a policy opens to agents, and which command a list of words is. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from casemate.errors import InvalidArgument
from casemate.visible import is_plain

USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
MOST_WORDS, MOST_WORD_BYTES = 1000, 64 << 10  # of one command, in all
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}\Z")
_SHELL = re.compile(r"[;&|<>`$\n\r{}*?'\"\\~\[\]]")  # what a command line would say to a shell, which there is none of
# What a command gets besides the policy's own: nothing of the user's settings makes it start something else.
ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_CONFIG_COUNT": "1",  # no hook is run
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": "/dev/null",
    "GIT_ALLOW_PROTOCOL": "https:http:ssh:git",  # a repository on this machine runs hooks and filters of its own
}
NO_REPOSITORY = b"fatal: --local can only be used inside a git repository\n"  # what git says then
_SUBMODULE = b"160000 "  # the mode of a commit of another repository (gitformat-index(5))
# Keys of a repository's own configuration (git-config(1)) by which nothing is started: any other refuses the command.
HARMLESS_GIT_KEY = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|"
    r"safecrlf|quotepath|compression|abbrev)|remote\..*\.(url|pushurl|fetch|tagopt|prune|skipdefaultupdate)|"
    r"branch\..*\.(remote|merge|rebase|description)|user\.(name|email)|submodule\..*\.(url|active)|"
    r"(pull|push|fetch|init|color|log|status|diff)\.(rebase|ff|default|prune|defaultbranch|ui|date|showstash|short|"
    r"renames|algorithm)|extensions\.(objectformat|refstorage)",
    re.IGNORECASE,
)


# Files by which a program is steered that it also looks for above the folder that it is started in, where the policy
# has opened nothing. Make, for one, looks in its own folder alone.
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
    """Names of files in folders above its own by which ``program`` is steered."""
    return tuple(file for names, files in _FROM_ABOVE.items() if program in names.split() for file in files.split())


def starts_git(program: str) -> bool:
    """Whether ``program`` is git, a part of it, or has it look at the folder."""
    return program in _STARTS_GIT or program.startswith("git-")


@dataclass(frozen=True, slots=True)
class HostRoot:
    """A folder of the host's that agents may read in, and with ``write`` ask to write in. ``path``: absolute."""

    path: str
    write: bool = False


@dataclass(frozen=True, slots=True)
class HostTerms:
    """``folder``: where commands are run, None where none are; ``path``: folders in which programs are found; ``env``:
    variables of each command; ``timeout``: seconds at the most; ``output``: bytes of each stream that are kept."""

    folder: str | None = None
    path: tuple[str, ...] = USUAL_PATH
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    output: int = 1 << 20
    roots: tuple[HostRoot, ...] = ()
    where: str = ""


def words_of(command: object) -> tuple[str, ...]:
    """The words of a command: a list of them, or a line that no shell would read otherwise. Raises
    ``InvalidArgument``."""
    if isinstance(command, str):
        if found := _SHELL.search(command):
            raise InvalidArgument(
                "command",
                f"{found[0]!r} is for a shell, and none reads this",
                remediation='Give a list of words: ["git", "log", "-n", "3"]. One command at a time.',
            )
        command = command.split()
    if not isinstance(command, Sequence) or not all(isinstance(word, str) for word in command):
        raise InvalidArgument("command", "is no list of words, such as ['git', 'status']")
    words = tuple(command)
    if not words or not _PROGRAM.match(words[0]):
        shown = repr(words[0])[:100] if words else "nothing"
        raise InvalidArgument(
            "command",
            f"{shown} is no program's name: it is looked for in fixed folders, so give its bare name, such as 'git'",
        )
    if words[0] == "git" and words[1:] and words[1].startswith("-"):
        raise InvalidArgument(
            "command",
            f"{words[1][:100]!r}: options before git's command lead it to other folders and settings",
            remediation='Begin with the command: ["git", "status"].',
        )
    if any("\0" in word for word in words):
        raise InvalidArgument("command", "has a NUL character, which no command can")
    size = sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
    if len(words) > MOST_WORDS or size > MOST_WORD_BYTES:
        raise InvalidArgument("command", f"has more than {MOST_WORDS} words or {MOST_WORD_BYTES >> 10} KiB")
    if not all(is_plain(word.replace("\n", " ").replace("\t", " "), spaces=True) for word in words):
        raise InvalidArgument("command", "has characters that nobody who is asked could see")
    return words


def risk_of_keys(listing: bytes) -> str:
    """Why git may start something for the keys in a repository's configuration (``git config --null --name-only
    --list``), empty where it does not."""
    keys = listing.decode("utf-8", "replace").split("\0")
    risky = dict.fromkeys(key for key in keys if key and not HARMLESS_GIT_KEY.fullmatch(key))
    return f"{', '.join([*risky][:10])} in its configuration may start programs" if risky else ""


def risk_of_index(listing: bytes) -> str:
    """The same for what is in its index (``git ls-files --stage``)."""
    is_there = b"\n" + _SUBMODULE in b"\n" + listing
    return "it has submodules, whose own configuration may start programs" if is_there else ""
