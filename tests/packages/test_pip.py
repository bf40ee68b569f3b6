"""``pip`` in a session, by any of its names: the host does it, and says what came of it as pip does."""

from __future__ import annotations

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
    (request,) = asked
    assert (request.run, request.session) == (ran.id, session.id)


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


async def test_a_file_of_requirements_is_read(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    index.add(wheel("beta"))
    async with (
        opened() as sandbox,
        sandbox.session(files={"wanted.txt": "# mine\nalpha==1.0\n\nbeta # too\n"}) as session,
    ):
        ran = await session.run("%pip install -r wanted.txt\nimport alpha, beta")
    assert ran.ok, ran.text


@pytest.mark.parametrize("option", ["--index-url=http://evil.test", "-e .", "--target x", "--pre", "-f /x"])
async def test_other_options_are_refused_by_their_names(opened: Opened, index: Index, option: str) -> None:
    async with opened() as sandbox, sandbox.session() as session:
        ran = await session.run(f"!pip install {option} alpha")
    assert option.split("=", maxsplit=1)[0].split(" ", maxsplit=1)[0] in ran.stderr
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


async def test_where_nobody_can_be_asked_pip_says_so(opened: Opened, index: Index) -> None:
    async with opened(approve=None, network="none") as sandbox, sandbox.session() as session:
        ran = await session.run("%pip install alpha")
    assert "nobody can be asked" in ran.stderr


@pytest.mark.parametrize("line", [
    b"\n", b"[]\n", b"{}\n", b'{"do":"install"}\n', b'{"do":"install","packages":"alpha"}\n', b"\xff\n",
    b'{"do":"install","packages":[1]}\n', b'{"do":"steal","packages":["alpha"]}\n', b"[" * 60000 + b"\n",
    b'{"do":"install","packages":["--index-url=http://evil.test"]}\n', b'{"do":"install","packages":[]}\n',
])  # fmt: skip
async def test_a_request_that_is_none_is_answered_and_nothing_is_done(
    opened: Opened, index: Index, line: bytes
) -> None:
    async with opened() as sandbox, sandbox.session() as session:
        await session.run(PROTOCOL)
        await session.run(f"answer = ask({line!r})" if len(line) < 1000 else "answer = ask(b'[' * 60000 + b'\\n')")
        answer = await session.get("answer")
    assert (answer["ok"], answer["kind"]) == (False, "invalid")
    assert index.asked == []


async def test_a_request_that_does_not_end_is_given_up(opened: Opened) -> None:
    async with opened() as sandbox, sandbox.session() as session:
        ran = await session.run(f"{PROTOCOL}\ntry:\n    print(ask(b'x' * 200_000))\nexcept OSError:\n    print(None)")
    assert ran.stdout == "None\n"
