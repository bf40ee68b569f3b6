"""The known clients, the command that they start, and their settings files, replaced in one step with a backup.

Paths and formats are from the clients' own documentation, as of November 2026."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import site
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Literal

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.files.beneath import Attributes, hold, write_file
from casemate.surfaces.clients.entries import read

Scope = Literal["user", "project"]
Form = Literal["plain", "typed", "custom"]


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    title: str
    user: str  # the file for all projects, relative to ``base``
    project: str | None = None  # a project's file, relative to its folder
    key: str = "mcpServers"  # of the object that holds the servers
    form: Form = "plain"  # which fields an entry has beside its command
    base: Literal["home", "config"] = "home"
    own: str | None = None  # its own program, which adds and removes servers for all projects

    @property
    def is_toml(self) -> bool:
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
        Client("gemini-cli", "Gemini CLI", ".gemini/settings.json", ".gemini/settings.json", own="gemini"),
        Client("copilot-cli", "GitHub Copilot CLI", ".copilot/mcp-config.json", ".mcp.json", form="typed"),
        Client("lm-studio", "LM Studio", ".lmstudio/mcp.json"),
        Client("codex", "Codex", ".codex/config.toml", ".codex/config.toml", "mcp_servers", own="codex"),
    )
}  # fmt: skip


def client_named(name: str) -> Client:
    """The client of that name. Raises ``InvalidArgument``, which suggests the nearest."""
    if name in CLIENTS:
        return CLIENTS[name]
    from casemate.model.foreign import suggest

    raise InvalidArgument(
        "client", f"{name!r} is not a known client{suggest(name, CLIENTS)}",
        remediation=f"Known are {', '.join(CLIENTS)}. For another: `casemate install --print claude-desktop` shows "
        "the entry that most of them take.",
    )  # fmt: skip


def file_of(client: Client, scope: Scope, environ: Mapping[str, str], folder: str) -> str:
    """The absolute path of the client's file. ``folder``: the project's. Raises ``InvalidArgument``."""
    if scope == "project":
        if client.project is None:
            raise InvalidArgument("scope", f"{client.title} has no project settings; leave --scope out")
        return posixpath.join(folder, client.project)
    home = environ.get("HOME", "")
    config = environ.get("XDG_CONFIG_HOME", "")
    if client.base == "config" and config.startswith("/"):
        return posixpath.join(config, client.user)
    if not home.startswith("/"):
        raise InvalidArgument("client", f"the file of {client.title} is unknown: HOME is not an absolute path")
    return posixpath.join(home, ".config" if client.base == "config" else "", client.user)


def entry_of(client: Client, command: Sequence[str]) -> dict[str, Any]:
    """The client's entry for a server that ``command`` starts."""
    plain: dict[str, Any] = {"command": command[0], "args": list(command[1:])}
    if client.form == "typed":
        return {"type": "stdio", **plain}
    if client.form == "custom":
        return {"source": "custom", **plain, "env": {}}
    return plain


def own_command(client: Client, name: str, entry: Mapping[str, Any] | None) -> list[str]:
    """The client's own command that adds ``entry``, or removes it for None; empty if its program is not installed."""
    program = shutil.which(client.own or "")
    if program is None:
        return []
    scope = [] if client.own == "codex" else ["--scope", "user"]  # Codex has user scope only
    if entry is None:
        return [program, "mcp", "remove", *scope, name]
    if client.own == "claude":
        return [program, "mcp", "add-json", *scope, name, json.dumps(entry)]
    if client.own == "codex":
        return [program, "mcp", "add", name, "--", entry["command"], *entry["args"]]
    return [program, "mcp", "add", *scope, name, entry["command"], "--", *entry["args"]]


_MOST_SECONDS = 60.0  # for a command to start on a loaded machine
_CACHE = "CACHEDIR.TAG"  # marks a folder that may be emptied at any time (bford.info/cachedir)


def serve_command(toolset: str | None = None) -> list[str]:
    """The command that starts this casemate with ``serve``, by absolute path.

    An installation inside a cache, such as one made by `uvx`, may vanish: then the command is `uvx` again, with what it
    was installed from. An environment made by uv carries the cache mark itself, but lasts.
    """
    options = ["serve", *(["--toolset", toolset] if toolset else [])]
    uvx, place = shutil.which("uvx"), Path(sys.prefix)
    if uvx and any((folder / _CACHE).is_file() for folder in place.parents):
        return [os.path.abspath(uvx), *_from_source(), "casemate", *options]
    folders = [os.path.dirname(sys.executable)]  # not resolved, so that a virtual environment keeps its own
    if Path(__file__).is_relative_to(site.getusersitepackages()):  # pip install --user
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for folder in folders:
        if os.access(script := os.path.join(folder, "casemate"), os.X_OK):
            return [script, *options]
    return [sys.executable, "-P", "-m", "casemate", *options]  # -P: loads no module from the client's folder


def _from_source() -> list[str]:
    """uvx's option for where casemate was installed from, unless that was an index (PEP 610)."""
    origin = json.loads(distribution("casemate").read_text("direct_url.json") or "{}")
    if "vcs_info" in origin:
        return ["--from", f"{origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"]
    return ["--from", origin["url"]] if origin else []


def check_start(command: Sequence[str]) -> None:
    """Start ``command`` once, in a folder whose modules bear the names of casemate's and Python's own. Raises
    ``Unavailable`` if it fails or loads one of these. `uvx` is not tried: it downloads, and reads nothing there."""
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
    """Advice on entries that let Python load modules from the folder in which the client was started."""
    for client in CLIENTS.values():
        try:
            path = file_of(client, "user", environ, "/")
            servers = read(read_settings(path).text, is_toml=client.is_toml).get(client.key)
        except (CasemateError, ValueError):
            continue
        for name, entry in servers.items() if isinstance(servers, dict) else ():
            arguments = entry.get("args") if isinstance(entry, Mapping) else None
            if isinstance(arguments, list) and arguments[:2] == ["-m", "casemate"]:
                yield (
                    f"{path}: the entry {name} lets Python load modules from whichever folder {client.title} is "
                    f"started in, even an untrusted one. Replace it: casemate install {client.name} --name {name}"
                )


_MOST_BYTES = 16 << 20  # of a file; most settings have kilobytes, Claude Code's some megabytes
_MOST_KEPT = 100  # backups beside a file
_KEPT = "before-casemate"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    path: Path  # with links resolved
    text: str  # empty if there is no file
    status: os.stat_result | None  # None if there is no file


def read_settings(named: str) -> SettingsFile:
    """Read a settings file. Raises ``InvalidArgument`` if it is not a regular file, too large, or not UTF-8."""
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
            raise _unusable(named, "it is not a regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _unusable(named, f"it has more than {_MOST_BYTES >> 20} MiB")
    try:
        return SettingsFile(path, data.decode("utf-8"), status)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unusable(named, f"line {line} is not UTF-8") from None


def replace(found: SettingsFile, text: str) -> Path | None:
    """Replace the file, keeping its mode and owner; a new file is private. Returns the backup of the earlier content,
    if any. Raises ``InvalidArgument`` if the file has changed since it was read, or cannot be written."""
    try:
        found.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(os.open(found.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            kept = None if found.status is None else _keep(folder, found)
            write_file(
                folder, found.path.name, [text.encode()], _attributes(found), before=lambda: _check_unchanged(found),
                flush=True,
            )  # fmt: skip
    except OSError as error:
        raise _unusable(str(found.path), str(error.strerror)) from None
    return kept


def _keep(folder: int, found: SettingsFile) -> Path:
    for number in range(_MOST_KEPT):
        name = f"{found.path.name}.{_KEPT}" + (f".{number}" if number else "")
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            write_file(folder, name, [found.text.encode()], _attributes(found), flush=True)
            return found.path.with_name(name)
    raise _unusable(str(found.path), f"there are {_MOST_KEPT} backups beside it; remove some")


def _attributes(found: SettingsFile) -> Attributes:
    if found.status is None:
        return Attributes(mode=0o600)
    owner = (found.status.st_uid, found.status.st_gid)
    is_ours = owner == (os.geteuid(), os.getegid())
    return Attributes(mode=found.status.st_mode, owner=None if is_ours else owner)


def _check_unchanged(found: SettingsFile) -> None:
    if read_settings(str(found.path)).text != found.text:
        raise _unusable(str(found.path), "it has changed since it was read; start again")


def _unusable(path: str, why: str) -> InvalidArgument:
    return InvalidArgument("client", f"{path!r} is unchanged: {why}")
