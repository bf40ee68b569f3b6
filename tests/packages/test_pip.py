"""``pip`` in a session, by any of its names: the host does it, and says what came of it as pip does."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.packages.conftest import Opened
from tests.packages.index import Index, wheel

from casemate import ApprovalRequest

PROTOCOL = """
import json, socket
def ask(line):
    with socket.create_connection(("packages.casemate.internal", 81), 20) as host:
        host.sendall(line)
        return json.loads(host.makefile().readline() or "null")
"""


@pytest.mark.parametrize("line", ["%pip install alpha", "!pip install alpha", "pip install 'alpha>=1' -q --user; 1"])
async def test_what_pip_installed_can_be_imported_in_the_same_step(
    opened: Opened, index: Index, asked: list[ApprovalRequest], line: str
) -> None:
    index.add(wheel("alpha"))
    line = line.replace("pip install 'alpha>=1' -q --user; 1", "!pip3 install -q --user 'alpha>=1'")
    async with opened() as sandbox, sandbox.session() as session:
        ran = await session.run(f"{line}\nimport alpha; print(alpha.VERSION)")
    assert ran.ok, ran.text
    assert ran.stdout == ("" if "-q" in line else "Successfully installed alpha-1.0\n") + "1.0\n"
    assert [request.arguments["packages"] for request in asked] == [["alpha"], ["alpha==1.0"]]
    assert {(request.run, request.session) for request in asked} == {(ran.id, session.id)}


async def test_a_denial_is_told_with_its_reason(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))

    async def approve(request: ApprovalRequest) -> bool:
        return await request.deny("not on this machine") and False

    async with opened(approve=approve) as sandbox, sandbox.session() as session:
        ran = await session.run("!pip install alpha; echo $?")
        after = await session.run("import alpha")
    assert "not on this machine" in ran.stderr
    assert ran.stdout == "1\n"
    assert not after.ok
    assert index.asked == []


def _hash(content: bytes) -> str:
    return f"--hash=sha256:{hashlib.sha256(content).hexdigest()}"


REQUIREMENTS = (
    "# mine\nalpha==1.0\n\nbeta # too\n",
    "\ufeffalpha==1.0\r\nbeta\t# too\r\n",
    "-r more/other.txt\nbeta ; python_version >= '3'\ngamma; sys_platform == 'win32'\n",
    "alpha \\\n    == 1.0\n--requirement=more/beta.txt",
    " # a path such as C:\\\nalpha \\\n  \\\n == 1.0\nbeta",
)


async def test_a_file_of_requirements_is_read_as_pip_reads_it(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    index.add(wheel("beta"))
    async with opened() as sandbox:
        for content in REQUIREMENTS:
            files = {"wanted.txt": content, "more/other.txt": "alpha\n", "more/beta.txt": "beta"}
            async with sandbox.session(files=files) as session:
                ran = await session.run("%pip install -r wanted.txt\nimport alpha, beta")
            assert ran.ok, (content, ran.text)
    assert not any("gamma" in path for path in index.paths())


async def test_pk_05_of_a_file_with_hashes_only_what_has_one_of_them_comes(
    opened: Opened, index: Index, asked: list[ApprovalRequest]
) -> None:
    contents = {name: index.add(wheel(name)).content for name in ("alpha", "beta")}
    index.add(wheel("alpha", "2.0"))
    alpha, beta = (_hash(one) for one in contents.values())
    locked = f"alpha \\\n    --hash=sha256:{'0' * 64} \\\n    {alpha}\n    # via beta\nbeta==1.0 {beta}\n"
    async with opened() as sandbox, sandbox.session(files={"locked.txt": locked}) as session:
        ran = await session.run("%pip install --require-hashes -r locked.txt\nimport alpha; print(alpha.VERSION)")
    assert ran.stdout == "Successfully installed alpha-1.0 beta-1.0\n1.0\n", ran.text
    assert [request.arguments["packages"] for request in asked] == [["alpha", "beta"], ["alpha==1.0", "beta==1.0"]]


async def test_what_has_another_hash_or_none_does_not_come(
    opened: Opened, index: Index, installer: str, asked: list[ApprovalRequest]
) -> None:
    alpha = _hash(index.add(wheel("alpha", requires=("beta",))).content)
    index.add(wheel("beta"))
    async with opened() as sandbox, sandbox.session() as session:
        other = await sandbox.packages.install([f"alpha --hash=sha256:{'0' * 64}"], session=session)
        unhashed = await sandbox.packages.install([f"alpha {alpha}"], session=session)
    assert (other.status, unhashed.status) == ("failed", "failed"), installer
    assert "alpha is limited to files with the hashes given for it" in other.reason
    assert "no hash was given for beta" in unhashed.reason
    assert asked == []


async def test_a_page_without_hashes_brings_nothing_that_has_another(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"), hashes={})
    async with opened() as sandbox, sandbox.session() as session:
        ran = await sandbox.packages.install([f"alpha --hash=sha256:{'0' * 64}"], session=session)
    assert ran.status == "failed"
    assert "alpha-1.0-py3-none-any.whl has none of the hashes given for it" in ran.reason


async def test_options_that_change_nothing_may_stand_wherever_pip_takes_them(opened: Opened, index: Index) -> None:
    lines = {
        "alpha": "pip -q install alpha",
        "beta": "pip install -Uq beta",
        "gamma": "pip install --only-binary :all: gamma -qqq",
        "delta": "pip --disable-pip-version-check install delta -q",
    }
    async with opened() as sandbox, sandbox.session() as session:
        for name, line in lines.items():
            index.add(wheel(name))
            ran = await session.run(f"!{line}\nimport {name}")
            assert (ran.ok, ran.text) == (True, ""), line


async def test_options_without_a_command_are_refused(opened: Opened) -> None:
    async with opened() as sandbox, sandbox.session() as session:
        ran = await session.run("!pip -q --yes; echo $?")
    assert "'pip -q' is not supported here" in ran.stderr
    assert ran.stdout == "1\n"


async def test_a_file_that_cannot_be_followed_says_why(opened: Opened, index: Index) -> None:
    reasons = {
        "-r 0.txt": "requirements files include each other",
        "alpha; nonsense": "is not a valid marker",
        "--index-url http://evil.test\nalpha": "--index-url is not supported",
        "alpha": "has no hash",
    }
    files = {f"{number}.txt": content for number, content in enumerate(reasons)}
    async with opened() as sandbox, sandbox.session(files=files) as session:
        for number, why in enumerate(reasons.values()):
            assert why in (await session.run(f"!pip install --require-hashes -r {number}.txt")).stderr
    assert index.asked == []


async def test_other_options_are_refused_by_their_names(opened: Opened, index: Index) -> None:
    async with opened() as sandbox, sandbox.session() as session:
        for option in ("--index-url=http://evil.test", "-e .", "--target x", "--pre", "-f /x"):
            ran = await session.run(f"!pip install {option} alpha")
            assert option.replace("=", " ").split()[0] in ran.stderr
    assert index.asked == []


async def test_what_was_installed_is_listed_by_the_real_pip_and_taken_away_again(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    async with opened() as sandbox, sandbox.session() as session:
        await session.run("%pip install alpha")
        shown = await session.run("!pip show alpha")
        again = await session.run("%pip install alpha")
        gone = await session.run("%pip uninstall -y alpha\nimport alpha")
    assert "Version: 1.0" in shown.stdout
    assert again.stdout == "Requirement already satisfied: alpha\n"
    assert gone.stdout == "Successfully uninstalled alpha-1.0\n"
    assert gone.error is not None
    assert gone.error.name == "ModuleNotFoundError"


def test_a_program_runs_with_packages_that_the_command_line_names(tmp_path: Path) -> None:
    """From a folder of the operator's, as pip's find-links has it."""
    name, content = wheel("alpha", scripts={"say-alpha": "alpha:main"})
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(content)
    (tmp_path / "program.py").write_text("import alpha; print(alpha.VERSION)")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    command = [sys.executable, "-m", "casemate", "run", "--with", "alpha", str(tmp_path / "program.py")]
    done = subprocess.run(command, env={**env, "PIP_NO_INDEX": "1"}, capture_output=True, text=True, check=False)
    assert done.stdout == "1.0\n", done.stderr
    assert "installed alpha" in done.stderr
    said = subprocess.run(
        [*command[:4], "--language", "shell", *command[4:6], "-"],
        env={**env, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
        input="say-alpha; python3 -c 'import alpha; print(alpha.VERSION)'",
    )
    assert said.stdout == "I am 1.0\n1.0\n", said.stderr
    (tmp_path / "policy.yaml").write_text("rules: [{deny: package, package: alpha}]")
    denied = [*command[:4], "--policy", str(tmp_path / "policy.yaml"), *command[4:]]
    refused = subprocess.run(denied, env={**env, "PIP_NO_INDEX": "1"}, capture_output=True, text=True, check=False)
    assert (refused.returncode, "installing" in refused.stderr) == (77, False), refused.stderr
    (tmp_path / "wheels" / name).unlink()
    again = subprocess.run(command, env={**env, "PIP_NO_INDEX": "1"}, capture_output=True, text=True, check=False)
    assert again.stdout == "1.0\n", again.stderr  # as it was installed before
    full = [*command[:4], "--disk", "1MiB", *command[4:]]
    env["HOME"] = str(tmp_path / "wheels")
    (tmp_path / "wheels" / name).write_bytes(wheel("alpha", files={"alpha/data.bin": os.urandom(4 << 20).hex()})[1])
    ended = subprocess.run(full, env={**env, "PIP_NO_INDEX": "1"}, capture_output=True, text=True, check=False)
    assert "limits.disk" in ended.stderr
    assert "--disk" in ended.stderr, ended.stderr
    without = subprocess.run([*command[:4], command[-1]], env=env, capture_output=True, text=True, check=False)
    assert "--with NAME adds one" in without.stderr


async def test_where_nobody_can_be_asked_pip_says_so(opened: Opened, index: Index) -> None:
    async with opened(approve=None, network="none") as sandbox, sandbox.session() as session:
        ran = await session.run("%pip install alpha")
    assert "no rule allows alpha and nobody can be asked" in ran.stderr
    assert "resol" not in ran.text
    assert not ran.ok


NO_REQUESTS = (
    b"\n", b"[]\n", b"{}\n", b'{"do":"install"}\n', b'{"do":"install","packages":"alpha"}\n', b"\xff\n",
    b'{"do":"install","packages":[1]}\n', b'{"do":"steal","packages":["alpha"]}\n', b"[" * 60000 + b"\n",
    b'{"do":"install","packages":["--index-url=http://evil.test"]}\n', b'{"do":"install","packages":[]}\n',
)  # fmt: skip


async def test_a_request_that_is_none_is_answered_and_nothing_is_done(opened: Opened, index: Index) -> None:
    async with opened() as sandbox, sandbox.session() as session:
        await session.run(PROTOCOL)
        for line in NO_REQUESTS:
            await session.run(f"answer = ask({line!r})" if len(line) < 1000 else "answer = ask(b'[' * 60000 + b'\\n')")
            answer = await session.get("answer")
            assert (answer["ok"], answer["kind"]) == (False, "invalid"), line[:50]
    assert index.asked == []


async def test_a_request_that_does_not_end_is_given_up(opened: Opened) -> None:
    async with opened() as sandbox, sandbox.session() as session:
        ran = await session.run(f"{PROTOCOL}\ntry:\n    print(ask(b'x' * 200_000))\nexcept OSError:\n    print(None)")
    assert ran.stdout == "None\n"


def test_a_program_has_the_packages_of_a_requirements_file_a_group_and_its_own_head(
    tmp_path: Path, index: Index
) -> None:
    """From an index, which the command line alone lets be asked."""
    for name in ("alpha", "beta"):
        index.add(wheel(name))
    (tmp_path / "requirements.txt").write_text("# these\nalpha >=1  # one\n")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\ndependencies = ["alpha"]\n'
        '[dependency-groups]\ntest = ["beta", {include-group = "more"}]\nmore = ["alpha"]\n'
    )
    (tmp_path / "both.py").write_text("import alpha, beta; print(alpha.VERSION, beta.VERSION)")
    (tmp_path / "one.py").write_text("import alpha; print(alpha.VERSION)")
    head = '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#   "alpha",\n# ]\n# ///\n'
    (tmp_path / "declares.py").write_text(f"{head}import alpha; print(alpha.VERSION)")
    (tmp_path / "rules.yaml").write_text("rules: [{allow: package, package: alpha}]")
    (tmp_path / "options.txt").write_text("-r other.txt\n")

    def run(*words: str) -> tuple[int, str, str]:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_INDEX_URL": index.url}
        command = [sys.executable, "-m", "casemate", "run", *words]
        done = subprocess.run(
            command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    assert run("--with", "alpha", "one.py")[:2] == (0, "1.0\n")
    (tmp_path / "reaches.py").write_text("import urllib.request as u; u.urlopen('https://other.test')")
    assert "found and reached: --allow other.test\n" in run("--with", "alpha", "reaches.py")[2]
    assert run("--with-requirements", "requirements.txt", "one.py")[:2] == (0, "1.0\n")
    assert run("--with-requirements", "pyproject.toml", "one.py")[:2] == (0, "1.0\n")
    assert run("--with-requirements", "pyproject.toml:test", "both.py")[:2] == (0, "1.0 1.0\n")
    assert run("--policy", "rules.yaml", "declares.py")[:2] == (0, "1.0\n")
    assert run("--policy", "rules.yaml", "--environment", "requirements.txt", "one.py")[:2] == (0, "1.0\n")
    code, _, said = run("declares.py")
    assert (code, "no rule allows alpha" in said) == (77, True), said
    assert "asks for alpha itself (# /// script). Allow that with --with alpha, or with a rule" in said
    assert run("--with", "alpha", "declares.py")[:2] == (0, "1.0\n")
    for words, wrong in (
        (("--with-requirements", "options.txt"), "is an option of pip"),
        (("--with-requirements", "missing.txt"), "cannot be read: No such file"),
        (("--with-requirements", "pyproject.toml:none"), "has no group 'none'"),
    ):
        code, _, said = run(*words, "one.py")
        assert (code, wrong in said) == (2, True), said
