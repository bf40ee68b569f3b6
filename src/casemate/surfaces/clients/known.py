"""The clients that are known, and the command that they start. Pure but for finding that command.

Places and forms are those of the clients' own documentation, as of November 2026.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from casemate.errors import InvalidArgument

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


_CACHE = "CACHEDIR.TAG"  # marks a folder that may be emptied at any time (bford.info/cachedir)


def serving(toolset: str | None = None) -> list[str]:
    """An absolute command, with ``serve`` and its options.

    An installation lasts unless it lies in a cache, where `uvx` makes its own: then it is `uvx casemate` again.
    """
    options = ["serve", *(["--toolset", toolset] if toolset else [])]
    uvx = shutil.which("uvx")
    if _is_in_cache(Path(sys.prefix)) and uvx:
        return [os.path.abspath(uvx), "casemate", *options]
    script = Path(sys.executable).parent / "casemate"  # not resolved: a virtual environment's own
    if os.access(script, os.X_OK):
        return [str(script), *options]
    return [sys.executable, "-m", "casemate", *options]


def _is_in_cache(place: Path) -> bool:
    return any((folder / _CACHE).is_file() for folder in (place, *place.parents))
