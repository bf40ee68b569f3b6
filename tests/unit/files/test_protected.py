"""Protected names: what tools run by themselves is protected however it is spelt; honest work is not."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.files.protected import PROTECTED, Protection, fold


def words(text: str) -> list[str]:
    return text.split()


DANGEROUS = words("""
    .bashrc .bash_profile .bash_login .profile .zshrc .zprofile .zshenv .zlogin .kshrc .cshrc .tcshrc .login
    .logout .inputrc .config/fish/config.fish fish/conf.d/x.fish .gitconfig .gitmodules .git/hooks/pre-commit
    .git/config .git/config.worktree .git/commondir .git/info/attributes .git/modules/sub/hooks/x
    .git/modules/a/b/config .git/worktrees/w/gitdir .git/objects/info/alternates
    .git/rebase-merge/git-rebase-todo .git .envrc .direnv/bin/x .vscode/tasks.json x.code-workspace
    .idea/workspace.xml .cursor/mcp.json .claude/settings.json .codex/config.toml .mcp.json
    .devcontainer/devcontainer.json .husky/pre-push .pre-commit-config.yaml lefthook.yml .npmrc .yarnrc
    .yarnrc.yml .pypirc pip.conf .netrc .ripgreprc sitecustomize.py usercustomize.py sitecustomize/__init__.py
    lib/x.pth .venv/bin/python venv/lib/python3.11/site-packages/a.py env/pyvenv.cfg env/bin/activate.fish
    env/bin/python3 node_modules/.hooks/install .ssh/authorized_keys .config/autostart/x.desktop
    .jupyter/jupyter_notebook_config.py .ipython/profile_default/startup/x.py .cargo/config.toml .Rprofile
    .ghci .octaverc
    .gdbinit .casemate/policy.toml HEAD bare/HEAD name.git/config name.git/hooks/update .hg/hgrc .sl/config
    .jj/repo/config.toml .helix/languages.toml opencode.json crush.json .qwen/settings.json .kilocode/mcp.json
    .junie/mcp/mcp.json .trae/mcp.json .factory/mcp.json .codeium/windsurf/mcp_config.json .mvn/extensions.xml
    .mvn/jvm.config .bazelrc tools/bazel .pnp.cjs .lvimrc .tmux.conf .screenrc .forward .bash_completion .psqlrc
    .sqliterc .mailcap env/bin/pip .tox/py311/bin/pytest __pycache__/x.cpython-311.pyc x.pyc x.pyo
    __pycache__/f-1.py311.nbi f.nbc
""")
HONEST = words("""
    package.json Makefile pyproject.toml setup.py conftest.py .env .editorconfig .gitattributes .gitignore
    .github/workflows/ci.yml .gitlab-ci.yml Dockerfile AGENTS.md CLAUDE.md src/config src/config/__init__.py
    hooks/useState.ts bin/run scripts/build.sh info/readme HEAD.txt node_modules/x/index.js output/plot.png
    git/hooks config.toml venvs/x environment.yml profile login x.pth.txt .git/index .git/HEAD
    .mvn.md tools/bazelisk env/example tox.ini src/bazelrc .hg/store/x
    .git/objects/ab/cd .git/refs/heads/main .git/COMMIT_EDITMSG .git/logs/HEAD my.config/x .bashrc.md
""")


@pytest.mark.parametrize("name", DANGEROUS)
@pytest.mark.parametrize("above", ["", "a/", "a/b/c/"])
def test_what_tools_run_by_themselves_is_protected_at_any_depth(name: str, above: str) -> None:
    assert PROTECTED.reason(tuple(f"{above}{name}".split("/")))


@pytest.mark.parametrize("name", DANGEROUS)
def test_no_spelling_of_a_protected_name_gets_by(name: str) -> None:
    """AR-06: as case-insensitive, normalising and forgiving file systems see it."""
    parts = name.split("/")
    for spell in (
        str.upper,
        str.title,
        lambda part: part + ".",
        lambda part: part + " ",
        lambda part: part[:2] + "\u200d" + part[2:],
        lambda part: "\ufeff" + part + "\ufe0f",
        lambda part: part.replace("c", "\uff43").replace("s", "\u017f"),
        lambda part: part + "::$INDEX_ALLOCATION",
    ):
        assert PROTECTED.reason(tuple(map(spell, parts))), list(map(spell, parts))


@pytest.mark.parametrize("name", HONEST)
def test_honest_work_is_not_protected(name: str) -> None:
    assert PROTECTED.reason(tuple(name.split("/"))) is None


def test_everything_beneath_a_protected_folder_is_protected() -> None:
    assert PROTECTED.reason((".vscode",), folder=True)
    assert PROTECTED.reason(("a", ".vscode", "deep", "file"))


def test_a_repositorys_own_folder_may_be_entered_but_not_replaced() -> None:
    assert PROTECTED.reason((".git",), folder=True) is None
    assert PROTECTED.reason((".git",))
    assert PROTECTED.reason(("git~1", "config"))


def test_the_reason_names_the_pattern() -> None:
    assert PROTECTED.reason(("x", ".Git", "hooks", "y")) == "its name is protected (.git/**/hooks)"


@given(st.text())
def test_folding_twice_changes_nothing(name: str) -> None:
    assert fold(fold(name)) == fold(name)


def is_meant(pattern: list[str], path: list[str]) -> bool:
    """Whether ``path`` begins with what ``pattern`` means."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(is_meant(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and is_meant(pattern[1:], path[1:])


NAMES = st.sampled_from(["a", "b", "ab", "a*", "*b", "*"])


@given(
    st.lists(
        st.tuples(st.lists(NAMES | st.just("**"), max_size=2), NAMES).map(lambda two: [*two[0], two[1]]), max_size=4
    ),
    st.lists(st.sampled_from(["a", "b", "ab", "aa", "bb", "c"]), min_size=1, max_size=5),
)
def test_a_path_is_protected_when_one_of_the_patterns_is_in_it(patterns: list[list[str]], path: list[str]) -> None:
    found = Protection(tuple("/".join(pattern) for pattern in patterns)).reason(tuple(path))
    assert (found is not None) == any(
        is_meant(pattern, path[start:]) for pattern in patterns for start in range(len(path))
    )
