"""``sandbox.packages.install``: what is there afterwards, for whom, and what is said about it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.packages.conftest import Opened
from tests.packages.index import Index, wheel

from casemate import ApprovalRequest, InvalidArgument, Sandbox, Unavailable

SHOW = "import alpha; print(alpha.VERSION, alpha.__file__)"


async def test_a_session_that_runs_can_import_what_was_installed(opened: Opened, index: Index, installer: str) -> None:
    file = index.add(wheel("alpha", "1.0"))
    async with opened() as sandbox, sandbox.session() as session:
        before = await session.run("x = 41\nimport alpha")
        installed = await sandbox.packages.install(["alpha"], session=session)
        after = await session.run(f"{SHOW}\nprint(x + 1)")
    assert before.error is not None
    assert before.error.name == "ModuleNotFoundError"
    assert installed.ok, installed
    (package,) = installed.packages
    assert (package.name, package.version, package.file) == ("alpha", "1.0", "alpha-1.0-py3-none-any.whl")
    assert package.sha256 == hashlib.sha256(file.content).hexdigest()
    assert package.source == f"http://127.0.0.1:{index.port}/files/{file.name}"
    assert package.size == len(file.content)
    assert after.stdout == "1.0 /packages/python/current/site/alpha.py\n42\n"


@pytest.mark.full
async def test_what_a_package_needs_comes_along_and_its_programs_can_be_run(
    opened: Opened, index: Index, installer: str
) -> None:
    index.add(wheel("alpha", "1.0", requires=("beta>=2",), scripts={"say": "alpha:main"}))
    index.add(wheel("beta", "1.0"))
    index.add(wheel("beta", "2.1"))
    async with opened() as sandbox, sandbox.session() as session:
        installed = await sandbox.packages.install(["alpha"], session=session)
        ran = await session.run("!say; python -c 'import beta; print(beta.VERSION)'")
        listed = await sandbox.packages.list(session=session)
    assert [(one.name, one.version) for one in installed.packages] == [("alpha", "1.0"), ("beta", "2.1")]
    assert ran.stdout == "I am 1.0\n2.1\n"
    assert [(one.name, one.version) for one in listed] == [("alpha", "1.0"), ("beta", "2.1")]


@pytest.mark.full
async def test_a_later_version_takes_the_place_of_an_earlier_one_and_all_of_its_files(
    opened: Opened, index: Index, installer: str
) -> None:
    index.add(wheel("alpha", "1.0", files={"only_in_one.py": ""}))
    index.add(wheel("alpha", "2.0"))
    index.add(wheel("beta"))
    async with opened() as sandbox, sandbox.session() as session:
        await sandbox.packages.install(["alpha==1.0", "beta"], session=session)
        await sandbox.packages.install(["alpha>1"], session=session)
        ran = await session.run(f"{SHOW}\nimport beta\nimport only_in_one")
    assert ran.stdout.startswith("2.0 ")
    assert ran.error is not None
    assert ran.error.value == "No module named 'only_in_one'"


async def test_what_the_environment_has_is_not_installed_again(opened: Opened, index: Index, installer: str) -> None:
    index.add(wheel("alpha", requires=("ipython", "packaging>=20")))
    index.add(wheel("ipython", "99.0"))
    async with opened() as sandbox, sandbox.session() as session:
        installed = await sandbox.packages.install(["alpha"], session=session)
        ran = await session.run("import alpha, IPython; print(IPython.__version__ != '99.0')")
    assert [one.name for one in installed.packages] == ["alpha"]
    assert ran.stdout == "True\n"


@pytest.mark.full
async def test_pk_06_another_session_and_runs_do_not_see_what_one_session_installed(
    opened: Opened, index: Index
) -> None:
    index.add(wheel("alpha"))
    async with opened() as sandbox, sandbox.session() as one, sandbox.session() as other:
        await sandbox.packages.install(["alpha"], session=one)
        results = [await one.run("import alpha"), await other.run("import alpha"), await sandbox.run("import alpha")]
        listed = await sandbox.packages.list()
    assert [result.ok for result in results] == [True, False, False]
    assert listed == ()


@pytest.mark.full
async def test_without_a_session_all_later_runs_and_sessions_have_it(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    index.add(wheel("beta"))
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["alpha"])
        run = await sandbox.run(
            f"{SHOW}\nimport subprocess; subprocess.run(['python', '-c', 'import alpha'], check=True)"
        )
        async with sandbox.session() as session:
            step = await session.run(SHOW)
            await sandbox.packages.install(["beta"], session=session)
            both = await session.run("import alpha, beta")
        lonely = await sandbox.run("import beta")
    assert installed.ok
    assert run.ok, run.text
    assert step.stdout.startswith("1.0 ")
    assert both.ok, both.text
    assert not lonely.ok


@pytest.mark.full
async def test_packages_outlive_the_interpreter_that_they_were_installed_for(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    async with opened() as sandbox, sandbox.session() as session:
        await sandbox.packages.install(["alpha"], session=session)  # before it has started
        first = await session.run(SHOW)
        await session.run("import os; os._exit(3)")
        second = await session.run(SHOW)
        await session.reset()
        third = await session.run(SHOW)
    assert [one.stdout[:4] for one in (first, second, third)] == ["1.0 ", "1.0 ", "1.0 "]


async def test_pk_06_what_is_installed_cannot_be_written_to_by_the_session(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    async with opened() as sandbox, sandbox.session() as session:
        await sandbox.packages.install(["alpha"], session=session)
        wrote = await session.run("open('/packages/python/current/site/alpha.py', 'w')")
        made = await session.run("open('/packages/python/new', 'w')")
    assert [one.error.name for one in (wrote, made) if one.error] == ["OSError", "OSError"]


async def test_pk_10_the_approver_is_asked_once_about_exactly_what_comes(
    opened: Opened, index: Index, asked: list[ApprovalRequest]
) -> None:
    files = {one.name: one for one in (index.add(wheel("alpha", requires=("beta",))), index.add(wheel("beta", "3")))}
    async with opened() as sandbox, sandbox.session() as session:
        await sandbox.packages.install(["alpha>=1"], session=session)
    (request,) = asked
    assert (request.kind, request.session) == ("package", session.id)
    assert request.arguments["packages"] == ["alpha==1.0", "beta==3"]
    assert request.arguments["requested"] == ["alpha>=1"]
    for said in request.arguments["files"]:
        content = files[said["file"]].content
        assert said["sha256"] == hashlib.sha256(content).hexdigest()
        assert said["bytes"] == len(content)
        assert said["source"].startswith(f"http://127.0.0.1:{index.port}/files/")


async def test_where_nobody_can_be_asked_nothing_is_even_looked_for(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    async with opened(approve=None) as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    assert installed.status == "denied"
    assert "no rule allows alpha: no approver is available" in installed.reason
    assert index.asked == []


async def test_what_no_rule_allows_of_what_comes_is_named(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha", requires=("beta", "gamma")))
    index.add(wheel("beta"))
    index.add(wheel("gamma"))
    rules = [{"allow": "package", "package": name} for name in ("alpha", "gamma")]
    async with opened(approve=None, policy={"rules": rules}) as sandbox, sandbox.session() as session:
        installed = await sandbox.packages.install(["alpha"])
        ran = await session.run("%pip install alpha")
    assert "no rule allows beta==1.0: " in installed.reason
    assert "no rule allows beta==1.0: " in ran.stderr


@pytest.mark.parametrize("default", ["ask", "deny"])
async def test_a_rule_for_a_package_with_its_dependencies_allows_these_and_nothing_else(
    opened: Opened, index: Index, default: str
) -> None:
    index.add(wheel("alpha", requires=("beta",)))
    index.add(wheel("beta", requires=("gamma; extra != 'x'", "delta; extra == 'x'")))
    index.add(wheel("gamma"))
    index.add(wheel("delta"))
    rules = [{"allow": "package", "package": "alpha", "with_dependencies": True}]
    async with opened(approve=None, policy={"rules": rules, "defaults": {"package": default}}) as sandbox:
        stranger = await sandbox.packages.install(["alpha", "delta"])
        installed = await sandbox.packages.install(["alpha"])
    assert stranger.status == "denied", stranger
    assert "delta" in stranger.reason
    assert [one.name for one in installed.packages] == ["alpha", "beta", "gamma"], installed


RULES = {"rules": [{"allow": "package", "package": "alpha==1.0"}, {"deny": "package", "package": "beta"}]}


@pytest.mark.parametrize(
    ("name", "status"), [("alpha==1.0", "installed"), ("alpha==2.0", "denied"), ("beta", "denied")]
)
async def test_rules_decide_about_the_versions_that_come(opened: Opened, index: Index, name: str, status: str) -> None:
    for file in (wheel("alpha", "1.0"), wheel("alpha", "2.0"), wheel("beta")):
        index.add(file)
    async with opened(approve=None, policy=RULES) as sandbox:
        installed = await sandbox.packages.install([name])
    assert installed.status == status, installed


DENIED: dict[str, tuple[dict[str, Any], str]] = {
    "network none": ({"network": "none"}, "network"),
    "a rule": ({"policy": {"rules": [{"deny": "package", "package": "alpha"}]}}, "denied by"),
    "the default": ({"policy": {"defaults": {"package": "deny"}, "rules": [{"allow": "package", "package": "b"}]}}, ""),
}


@pytest.mark.parametrize("why", DENIED)
async def test_the_index_does_not_hear_a_name_that_is_denied(
    opened: Opened, index: Index, why: str, asked: list[ApprovalRequest]
) -> None:
    index.add(wheel("alpha"))
    options, word = DENIED[why]
    async with opened(**options) as sandbox:
        installed = await sandbox.packages.install(["alpha==1.0"])
        async with sandbox.session() as session:
            ran = await session.run("!pip install alpha")
    assert (installed.status, word in installed.reason) == ("denied", True), installed
    assert not ran.stdout, ran
    assert (index.asked, asked) == ([], [])


async def test_the_index_does_not_hear_what_a_package_needs_where_a_rule_denies_it(
    opened: Opened, index: Index, installer: str
) -> None:
    index.add(wheel("alpha", requires=("beta",)))
    index.add(wheel("beta"))
    async with opened(policy={"rules": [{"deny": "package", "package": "beta"}]}) as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    assert (installed.status, "beta is not asked for" in installed.reason) == ("failed", True), installed
    assert not any("beta" in path for path in index.paths()), installer


async def test_a_rule_for_one_version_lets_the_index_hear_the_name_and_is_spent_once(
    opened: Opened, index: Index, asked: list[ApprovalRequest]
) -> None:
    index.add(wheel("alpha"))
    policy = {"rules": [{"allow": "package", "package": "alpha==1.0", "uses": 1}]}
    async with opened(approve=None, policy=policy) as sandbox, sandbox.session() as session:
        ran = await session.run("!pip install -q alpha\nimport alpha; print(alpha.VERSION)")
    assert ran.stdout == "1.0\n", ran
    assert asked == []


async def test_a_file_that_was_fetched_before_is_not_fetched_again(opened: Opened, index: Index) -> None:
    file = index.add(wheel("alpha"))
    async with opened() as sandbox:
        for _ in range(2):
            async with sandbox.session() as session:
                assert (await sandbox.packages.install(["alpha"], session=session)).ok
    assert index.paths().count(f"/files/{file.name}") == 1


async def test_what_was_removed_is_gone_and_the_rest_stays(opened: Opened, index: Index) -> None:
    index.add(wheel("alpha"))
    index.add(wheel("beta"))
    async with opened() as sandbox, sandbox.session() as session:
        await sandbox.packages.install(["alpha", "beta"], session=session)
        removed = await sandbox.packages.remove(["Alpha", "gamma"], session=session)
        ran = await session.run("import beta\nimport alpha")
        listed = await sandbox.packages.list(session=session)
    assert removed == (("alpha", "1.0"),)
    assert ran.error is not None
    assert ran.error.value == "No module named 'alpha'"
    assert [one.name for one in listed] == ["beta"]


async def test_pk_10_the_record_holds_the_installation_and_its_files(
    opened: Opened, index: Index, tmp_path: Path
) -> None:
    file = index.add(wheel("alpha"))
    async with opened() as sandbox:
        await sandbox.packages.install(["alpha>=1"])
    with sqlite3.connect(tmp_path / "audit.db") as record:
        rows = [(kind, json.loads(detail)) for kind, detail in record.execute("select kind, detail from record")]
    intent, outcome = [detail for kind, detail in rows if kind in ("intent", "outcome")]
    decision = next(detail for kind, detail in rows if kind == "decision")
    assert "alpha>=1" in intent["metadata"]["install"]
    assert outcome["installation"] == "installed"
    assert outcome["packages"][0]["sha256"] == hashlib.sha256(file.content).hexdigest()
    assert decision["arguments"]["packages"] == ["alpha==1.0"]


@pytest.mark.parametrize("answer", [True, False])
async def test_an_installation_is_an_event_and_one_that_is_denied_is_none(
    opened: Opened, index: Index, answer: bool
) -> None:
    index.add(wheel("alpha", "1.0"))
    async with opened(approve=lambda _: answer) as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    events = [event async for event in sandbox.audit.events(after=0) if event.name == "package.installed"]
    assert installed.ok is answer
    assert [one["name"] for event in events for one in event.detail["packages"]] == ["alpha"] * answer


async def test_a_name_that_no_index_knows_fails_with_the_installers_own_words(
    opened: Opened, index: Index, installer: str
) -> None:
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["nosuch"])
    assert installed.status == "failed"
    assert "nosuch" in installed.output
    assert installed.reason


async def test_pk_05_the_first_index_that_knows_a_name_is_the_only_one_for_it(opened: Opened, index: Index) -> None:
    other = Index()
    try:
        index.add(wheel("alpha", "1.0"))
        other.add(wheel("alpha", "9.0"))
        other.add(wheel("beta", "2.0"))
        async with opened(package_indexes=[index.url, other.url]) as sandbox:
            installed = await sandbox.packages.install(["alpha", "beta"])
    finally:
        other.close()
    assert [(one.name, one.version) for one in installed.packages] == [("alpha", "1.0"), ("beta", "2.0")]


async def test_the_operators_password_reaches_the_index_and_nobody_else(
    opened: Opened, index: Index, asked: list[ApprovalRequest], tmp_path: Path
) -> None:
    index.password = "s3cret-of-the-operator"
    index.add(wheel("alpha"))
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    assert installed.ok, installed
    assert "s3cret" not in repr(installed)
    assert "s3cret" not in repr(asked)
    assert b"s3cret" not in (tmp_path / "audit.db").read_bytes()


@pytest.mark.parametrize("language", ["shell", "cobol"])
async def test_only_python_and_node_have_packages(opened: Opened, language: str) -> None:
    async with opened() as sandbox:
        with pytest.raises((InvalidArgument, Unavailable)):
            await sandbox.packages.install(["alpha"], language=language)


async def test_a_session_of_another_sandbox_is_refused(opened: Opened, index: Index, tmp_path: Path) -> None:
    async with opened() as sandbox, Sandbox(audit=tmp_path / "other.db") as other, other.session() as session:
        with pytest.raises(InvalidArgument):
            await sandbox.packages.install(["alpha"], session=session)
