"""The clients that are known, the command that they start, and their files: read whole, and replaced in one step with
what they held kept beside them.

Places and forms are those of the clients' own documentation, as of November 2026."""

from __future__ import annotations

import os
import posixpath
import shutil
import site
import stat
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.files.beneath import Attributes, write_file
from casemate.surfaces.clients.editing import read

Scope = Literal["user", "project"]
Form = Literal["plain", "typed", "custom"]


@dataclass(frozen=True, slots=True)
class Client:
    """``user``: the file of all projects, relative to ``base``; ``project``: the one of a project, relative to its
    folder, or None; ``key``: the member that holds the servers; ``form``: what an entry has besides its command;
    ``own``: its own command, which adds a server itself."""

    name: str
    title: str
    user: str
    project: str | None = None
    key: str = "mcpServers"
    form: Form = "plain"
    base: Literal["home", "config"] = "home"
    own: str | None = None

    @property
    def is_toml(self) -> bool:
        """Whether its files are TOML; all others are JSON, some with comments."""
        return self.user.endswith(".toml")


CLIENTS: Mapping[str, Client] = {
    one.name: one
    for one in (
        Client("claude-desktop", "Claude Desktop", "Claude/claude_desktop_config.json", base="config"),
        Client("claude-code", "Claude Code", ".claude.json", ".mcp.json", form="typed", own="claude"),
        Client("cursor", "Cursor", ".cursor/mcp.json", ".cursor/mcp.json"),
        Client("vscode", "VS Code", "Code/User/mcp.json", ".vscode/mcp.json", "servers", "typed", "config"),
        Client(
            "vscode-insiders", "VS Code Insiders", "Code - Insiders/User/mcp.json", ".vscode/mcp.json", "servers",
            "typed", "config",
        ),
        Client("zed", "Zed", "zed/settings.json", ".zed/settings.json", "context_servers", "custom", "config"),
        Client("windsurf", "Windsurf", ".codeium/windsurf/mcp_config.json"),
        Client("gemini-cli", "Gemini CLI", ".gemini/settings.json", ".gemini/settings.json"),
        Client("copilot-cli", "GitHub Copilot CLI", ".copilot/mcp-config.json", ".mcp.json", form="typed"),
        Client("lm-studio", "LM Studio", ".lmstudio/mcp.json"),
        Client("codex", "Codex", ".codex/config.toml", ".codex/config.toml", "mcp_servers"),
    )
}  # fmt: skip


def client_named(name: str) -> Client:
    """The client of that name. Raises ``InvalidArgument`` that tells the nearest."""
    if name in CLIENTS:
        return CLIENTS[name]
    from casemate.model.foreign import suggest

    raise InvalidArgument(
        "client", f"{name!r} is none that casemate knows{suggest(name, CLIENTS)}",
        remediation=f"Known are {', '.join(CLIENTS)}. For any other: `casemate install --print claude-desktop` shows "
        "the entry that most of them take.",
    )  # fmt: skip


def file_of(client: Client, scope: Scope, environ: Mapping[str, str], folder: str) -> str:
    """The absolute path of the client's file. ``folder``: of the project. Raises ``InvalidArgument``."""
    if scope == "project":
        if client.project is None:
            raise InvalidArgument("scope", f"{client.title} has no servers of a project; leave --scope out")
        return posixpath.join(folder, client.project)
    home = environ.get("HOME", "")
    config = environ.get("XDG_CONFIG_HOME", "")
    if client.base == "config" and config.startswith("/"):
        return posixpath.join(config, client.user)
    if not home.startswith("/"):
        raise InvalidArgument("client", f"the file of {client.title} has no place: HOME is not set to an absolute path")
    return posixpath.join(home, ".config" if client.base == "config" else "", client.user)


def entry_of(client: Client, command: Sequence[str]) -> dict[str, Any]:
    """How the client writes down a server that ``command`` starts."""
    plain: dict[str, Any] = {"command": command[0], "args": list(command[1:])}
    if client.form == "typed":
        return {"type": "stdio", **plain}
    if client.form == "custom":
        return {"source": "custom", **plain, "env": {}}
    return plain


_MOST_SECONDS = 60.0  # for a command to start, on a machine under load
_CACHE = "CACHEDIR.TAG"  # marks a folder that may be emptied at any time (bford.info/cachedir)


def serve_command(toolset: str | None = None) -> list[str]:
    """An absolute command, with ``serve`` and its options.

    An installation lasts unless it lies in a cache, where `uvx` makes its own: then it is `uvx casemate` again. An
    environment that uv made carries the mark itself, and lasts.
    """
    options = ["serve", *(["--toolset", toolset] if toolset else [])]
    uvx, place = shutil.which("uvx"), Path(sys.prefix)
    if uvx and any((folder / _CACHE).is_file() for folder in place.parents):
        return [os.path.abspath(uvx), "casemate", *options]
    folders = [os.path.dirname(sys.executable)]  # not resolved: a virtual environment's own
    if Path(__file__).is_relative_to(site.getusersitepackages()):  # pip install --user
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for folder in folders:
        if os.access(script := os.path.join(folder, "casemate"), os.X_OK):
            return [script, *options]
    return [sys.executable, "-P", "-m", "casemate", *options]  # -P: no module is loaded from where the client is


def check_start(command: Sequence[str]) -> None:
    """Start ``command`` once, in a folder whose modules bear the names of casemate's and Python's own.

    Raises ``Unavailable`` where it does not start, or loads one of these. What `uvx` starts would have to be fetched,
    and reads nothing of the folder.
    """
    if os.path.basename(command[0]) == "uvx":
        return
    with tempfile.TemporaryDirectory(prefix="casemate-") as folder:
        for name in ("casemate", "json", "asyncio", "sitecustomize"):
            Path(folder, f"{name}.py").write_text("raise SystemExit('a module of the folder was loaded')\n")
        try:
            done = subprocess.run(
                [*command, "--help"], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=_MOST_SECONDS,
            )  # fmt: skip
            problem = done.stderr.strip()[-300:] if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    if problem:
        raise Unavailable(
            f"the command {' '.join(command)} does not start: {problem}",
            remediation="Install casemate in an environment of its own, with pipx or `uv tool install casemate`.",
        )


def risky_entries(environ: Mapping[str, str]) -> Iterator[str]:
    """What to do about entries that have Python look for modules first where the client was started."""
    for client in CLIENTS.values():
        try:
            path = file_of(client, "user", environ, "/")
            settings = _read_servers(client, read_settings(path).text)
        except (CasemateError, ValueError):
            continue  # it cannot be read
        for name, entry in settings.items():
            arguments = entry.get("args") if isinstance(entry, Mapping) else None
            if isinstance(arguments, list) and arguments[:2] == ["-m", "casemate"]:
                yield (
                    f"{path}: the entry {name} has Python load modules from whatever folder {client.title} is started "
                    f"in, which may be somebody else's. Write it anew: casemate install {client.name} --name {name}"
                )


def _read_servers(client: Client, text: str) -> Mapping[str, Any]:
    settings = tomllib.loads(text) if client.is_toml else read(text).value if text.strip() else {}
    servers = settings.get(client.key) if isinstance(settings, Mapping) else None
    return servers if isinstance(servers, Mapping) else {}


_MOST_BYTES = 16 << 20  # of a file; settings have kilobytes, Claude Code's own file some megabytes
_MOST_KEPT = 100  # earlier contents beside a file
_KEPT = "before-casemate"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """``path``: the file itself, links followed; ``text``: what it says, empty where there is none; ``status``: None
    where there is none."""

    path: Path
    text: str
    status: os.stat_result | None


def read_settings(named: str) -> SettingsFile:
    """What is there. Raises ``InvalidArgument`` for what is no regular file, too large, or no UTF-8."""
    path = Path(os.path.realpath(named))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return SettingsFile(path, "", None)
    except OSError as error:
        raise _unusable(named, str(error.strerror)) from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(named, "it is no regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _unusable(named, f"it has more than {_MOST_BYTES >> 20} MiB")
    try:
        return SettingsFile(path, data.decode("utf-8"), status)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unusable(named, f"line {line} is no UTF-8") from None


def replace(found: SettingsFile, text: str) -> Path | None:
    """Put ``text`` there, with the mode and the owner of what was there; a new file is its owner's alone.

    The earlier content is kept beside it; gives where, or None where there was none. Raises ``InvalidArgument`` where
    the file has changed since it was found, or cannot be written.
    """
    try:
        found.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(found.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(str(found.path), str(error.strerror)) from None
    try:
        kept = None if found.status is None else _keep(folder, found)
        write_file(
            folder, found.path.name, [text.encode()], _attributes(found), before=_check_unchanged(found), flush=True
        )  # fmt: skip
    except OSError as error:
        raise _unusable(str(found.path), str(error.strerror)) from None
    finally:
        os.close(folder)
    return kept


def _keep(folder: int, found: SettingsFile) -> Path:
    """The content as it was, in a file of its own whose name is free."""
    for number in range(_MOST_KEPT):
        name = f"{found.path.name}.{_KEPT}" + (f".{number}" if number else "")
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            write_file(folder, name, [found.text.encode()], _attributes(found), flush=True)
            return found.path.with_name(name)
    raise _unusable(str(found.path), f"there are {_MOST_KEPT} earlier contents beside it; remove some")


def _attributes(found: SettingsFile) -> Attributes:
    if found.status is None:
        return Attributes(mode=0o600)
    owner = (found.status.st_uid, found.status.st_gid)
    is_ours = owner == (os.geteuid(), os.getegid())
    return Attributes(mode=found.status.st_mode, owner=None if is_ours else owner)


def _check_unchanged(found: SettingsFile) -> Callable[[], None]:
    def check() -> None:
        if read_settings(str(found.path)).text != found.text:
            raise _unusable(str(found.path), "it has changed meanwhile; start again")

    return check


def _unusable(path: str, why: str) -> InvalidArgument:
    return InvalidArgument("client", f"{path!r} is left as it is: {why}")
