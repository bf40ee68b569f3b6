"""Leave in the caller's project what somebody or some tool runs later, and an honest file."""

from __future__ import annotations

import os
import pathlib

from tests.escapes.payloads.attempts import attempt, finish

_NAMES = """
    .git/hooks/pre-commit .git/hooks/post-checkout .git/config .git/info/attributes .envrc .vscode/tasks.json
    .vscode/settings.json .mcp.json .bashrc .profile .zshrc evil.pth sitecustomize.py usercustomize.py
    .venv/bin/activate .venv/bin/python .venv/lib/python3.11/site-packages/evil.pth .gitmodules .npmrc .netrc
    .ssh/authorized_keys .config/autostart/evil.desktop .ipython/profile_default/startup/evil.py
    .claude/settings.json
    .cursor/rules .idea/workspace.xml .devcontainer/devcontainer.json .husky/pre-commit sub/.git/hooks/pre-commit
    .GIT/hooks/pre-push .Envrc bare/HEAD .direnv/x .gitconfig
"""


def plant(name: str) -> None:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "w") as file:
        file.write("#!/bin/sh\necho planted\n")
    os.chmod(name, 0o755)


def by_renaming() -> None:
    """Made under a harmless name, then moved into place as a whole."""
    plant("harmless/hooks/pre-commit")
    os.rename(".git", "was-git")
    os.rename("harmless", ".git")


def by_links() -> None:
    """The folder that holds what runs is another one, by a link."""
    plant("innocent/hooks/pre-push")
    os.makedirs("repo", exist_ok=True)
    os.symlink("../innocent", "repo/.git")
    os.link(".vscode/settings.json", "copied.json")


def by_removing() -> None:
    os.unlink(".vscode/tasks.json")
    os.rmdir(".vscode")


for name in _NAMES.split():
    attempt(f"plant {name}", lambda name=name: plant(name))  # type: ignore[misc]
attempt("rename", by_renaming)
attempt("links", by_links)
attempt("remove", by_removing)
attempt("honest", lambda: pathlib.Path("src/result.txt").write_text("honest"))
finish()
