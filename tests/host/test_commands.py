"""Commands of the host: which are run, who is asked, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.host.conftest import Opened
from tests.support.waiting import until_async as until

from casemate import CasemateError, Decision, InvalidArgument, Sandbox
from casemate.errors import Denied
from casemate.policy.host import risk_of_keys

COUNT = {"allow": "host", "command": ["wc", "**"], "options": ["-l", "--total="]}


def is_alive(mark: str) -> bool:
    """Whether a process has ``mark`` among its arguments."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in place.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


async def test_a_command_that_a_rule_allows_runs_without_anybody_being_asked(opened: Opened) -> None:
    (opened.place / "project" / "lines").write_text("a\nb\n")
    async with opened.sandbox(COUNT) as sandbox:
        result = await sandbox.host.exec("wc -l lines")
    assert (result.status, result.exit_code, result.stdout, opened.asked) == ("ok", 0, "2 lines\n", [])


async def test_any_other_command_is_asked_about_word_for_word(opened: Opened) -> None:
    async with opened.sandbox(COUNT) as sandbox:
        result = await sandbox.host.exec(["wc", "--files0-from=/etc/passwd"])
    (request,) = opened.asked
    assert request.kind == "host"
    assert request.arguments["argv"] == ["wc", "--files0-from=/etc/passwd"]
    assert request.arguments["program"] == shutil.which("wc", path="/usr/local/bin:/usr/bin:/bin")
    assert result.status == "failed"


async def test_a_command_that_nobody_allows_does_not_run(opened: Opened) -> None:
    opened.answer = False
    async with opened.sandbox() as sandbox:
        with pytest.raises(Denied):
            await sandbox.host.exec(["touch", "marker"])
    async with Sandbox(policy=opened.policy(), audit=opened.place / "other.db") as nobody:
        with pytest.raises(Denied):
            await nobody.host.exec(["touch", "marker"])
    assert not (opened.place / "project" / "marker").exists()


async def test_nothing_is_open_without_a_word_of_the_policy(opened: Opened) -> None:
    async with Sandbox(approve=lambda _: True, audit=opened.place / "audit.db") as sandbox:
        for attempt in (sandbox.host.exec("id"), sandbox.host.read("/etc/hostname"), sandbox.host.request_access("id")):
            with pytest.raises(Denied, match="The operator"):
                await attempt
        access = await sandbox.host.access()
    assert (access.folder, access.roots, access.allowed) == (None, (), ())


@pytest.mark.parametrize(
    "line",
    [
        "wc; id", "wc && id", "wc | sh", "wc & id", "wc > f", "wc\nid", "wc\r\nid", "wc `id`", "wc $(id)", "wc ${IFS}x",
        "wc <(id)", "wc {a,b}", "wc ~root", "wc $HOME", "wc 'a b'", "\\wc x", "wc *",
    ],
)  # fmt: skip
async def test_ht_01_ht_02_a_line_that_a_shell_would_read_otherwise_is_refused(opened: Opened, line: str) -> None:
    async with opened.sandbox(COUNT) as sandbox:
        with pytest.raises(InvalidArgument):
            await sandbox.host.exec(line)
    assert opened.asked == []


@pytest.mark.parametrize("word", ["; id", "$(id)", "`id`", "~root", "{a,b}", "a b", "$HOME", "|sh"])
async def test_ht_02_a_word_is_given_as_it_is(opened: Opened, word: str) -> None:
    async with opened.sandbox({"allow": "host", "command": ["printf", "*", "*"]}) as sandbox:
        result = await sandbox.host.exec(["printf", "%s", word])
    assert result.stdout == word


@pytest.mark.parametrize(
    "name", ["wcx", "WC", "./wc", "/usr/bin/wc", "w\\c", "/proc/self/root/bin/wc", "../bin/wc", "", "-wc"]
)
async def test_ht_03_ht_07_a_program_is_a_bare_name_in_fixed_folders(opened: Opened, name: str) -> None:
    planted = opened.place / "project" / "wcx"
    planted.write_text("#!/bin/sh\ntouch marker\n")
    planted.chmod(0o755)
    async with opened.sandbox(COUNT) as sandbox:
        with pytest.raises(InvalidArgument):
            await sandbox.host.exec([name, "-l"])
    assert opened.asked == []
    assert not (opened.place / "project" / "marker").exists()


async def test_ht_07_a_program_that_others_could_change_is_not_run(opened: Opened) -> None:
    planted = opened.place / "out" / "mine"
    planted.write_text("#!/bin/sh\ntouch marker\n")
    planted.chmod(0o755)
    async with opened.sandbox(path=[str(opened.place / "out"), "/usr/bin"]) as sandbox:
        with pytest.raises(InvalidArgument, match="could be changed by others"):
            await sandbox.host.exec(["mine"])


@pytest.mark.parametrize(
    "rule",
    [
        {"command": "git **"}, {"command": ["find", "*"]}, {"command": "env *"}, {"command": "docker *"},
        {"command": "*"}, {"command": "**"}, {"command": ""}, {"command": ["wc", "a*"]}, {"command": "wc -l; id"},
        {"command": "wc *", "options": ["-"]}, {"command": "wc *", "options": ["x"]}, {},
        {"command": "wc *", "options": "-l"},
    ],
)  # fmt: skip
def test_ht_06_ht_13_a_rule_that_would_permit_anything_is_refused(opened: Opened, rule: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="policy"):
        opened.sandbox({"allow": "host", **rule})


async def test_a_rule_permits_the_options_that_it_names_and_no_others(opened: Opened) -> None:
    opened.answer = False
    async with opened.sandbox(COUNT) as sandbox:
        assert (await sandbox.host.exec(["wc", "-l", "--total=never", "/etc/hostname"])).exit_code is not None
        for words in (["wc", "-c", "/etc/hostname"], ["wc", "--total=-x", "f"], ["wc", "-l", "../f"]):
            with pytest.raises(Denied):
                await sandbox.host.exec(words)
    assert len(opened.asked) == 3


async def test_ht_08_a_command_has_a_fixed_environment(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "GIT_SSH_COMMAND", "DOCKER_HOST", "PAGER", "BASH_ENV", "PYTHONPATH", "CASEMATE_TOKEN"):
        monkeypatch.setenv(name, "/nonexistent/hostile")
    async with opened.sandbox(env={"TZ": "UTC"}) as sandbox:
        result = await sandbox.host.exec(["env"])
    assert "hostile" not in result.stdout
    assert "TZ=UTC\n" in result.stdout
    for name in ("LD_PRELOAD", "GIT_SSH_COMMAND", "PYTHONPATH"):
        with pytest.raises(InvalidArgument, match="must be in capitals, and must not select code"):
            opened.sandbox(env={name: "x"})


@pytest.mark.parametrize("key", ["core.fsmonitor", "filter.x.clean", "diff.external", "core.hooksPath", "alias.status"])
async def test_ht_05_git_starts_nothing_that_a_repository_names(opened: Opened, key: str) -> None:
    project = opened.place / "project"
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    async with opened.sandbox() as sandbox:
        assert (await sandbox.host.exec("git status --short")).ok
        (project / ".gitattributes").write_text("* filter=x\n")
        (project / "file").write_text("x")
        subprocess.run([*git, "config", key, f"touch {opened.place}/marker"], check=True)
        with pytest.raises(Denied, match="may start programs"):
            await sandbox.host.exec("git status --short")
    assert not (opened.place / "marker").exists()


def test_ht_05_keys_are_compared_whole() -> None:
    assert risk_of_keys(b"core.bare\0remote.origin.url\0branch.main.merge\0user.email\0") == ""
    said = risk_of_keys(b"core.bareX\0remote.origin.uploadpack\0xcore.bare\0")
    assert said.startswith("core.bareX, remote.origin.uploadpack, xcore.bare in its configuration")


async def test_ht_14_what_a_command_prints_is_bounded_and_what_it_leaves_is_ended(opened: Opened) -> None:
    mark = f"3{os.getpid()}.125"
    async with opened.sandbox(output=1000) as sandbox:
        result = await sandbox.host.exec(["sh", "-c", f"sleep {mark} & setsid sleep {mark} & seq 100000; cat; exit 3"])
    assert (result.exit_code, len(result.stdout), result.truncated) == (3, 1000, True)
    assert not is_alive(mark)


async def test_ht_14_a_command_that_goes_on_is_ended_with_all_that_it_started(opened: Opened) -> None:
    mark = f"3{os.getpid()}.25"
    script = f"trap '' TERM INT HUP; setsid sleep {mark} & echo begun; sleep {mark}"
    async with opened.sandbox() as sandbox:
        result = await sandbox.host.exec(["sh", "-c", script], timeout=1.0)
        assert (result.status, result.exit_code, result.stdout) == ("timeout", None, "begun\n")
        assert not is_alive(mark)
        running = asyncio.create_task(sandbox.host.exec(["sleep", mark]))
        await until(lambda: is_alive(mark))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not is_alive(mark)
        assert (await sandbox.host.exec(["true"])).ok


async def test_commands_end_with_the_process_that_began_them(opened: Opened) -> None:
    mark = f"3{os.getpid()}.375"
    program = (
        "import asyncio, sys\nfrom casemate import Sandbox, allow_all\n"
        f"box = Sandbox(policy={opened.policy()!r}, approve=allow_all, audit={str(opened.place / 'audit.db')!r})\n"
        f"asyncio.run(box.host.exec(['sleep', {mark!r}]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        await until(lambda: is_alive(mark))
        process.kill()
    await until(lambda: not is_alive(mark))


@pytest.mark.parametrize(
    "words",
    [["printf", "a\0b"], ["printf", "x" * (2 << 20)], ["printf", *["x"] * 2000], [], "", ["printf", "\u202eabc"]],
)
async def test_words_that_no_command_can_have_are_refused(opened: Opened, words: Any) -> None:
    async with opened.sandbox() as sandbox:
        with pytest.raises(InvalidArgument):
            await sandbox.host.exec(words)
    assert opened.asked == []


async def test_a_timeout_beyond_the_policys_is_an_error_that_names_it(opened: Opened) -> None:
    async with opened.sandbox(timeout=5) as sandbox:
        with pytest.raises(InvalidArgument, match="5 s that the policy gives"):
            await sandbox.host.exec("true", timeout=6)


async def test_a_secret_comes_by_name_is_asked_about_and_is_not_shown(opened: Opened) -> None:
    async with opened.sandbox({"allow": "host", "command": "printenv *"}) as sandbox:
        await sandbox.vault.set("DEPLOY_KEY", "correct-horse-battery")
        assert not (await sandbox.host.exec("printenv DEPLOY_KEY")).ok
        assert opened.asked == []
        result = await sandbox.host.exec("printenv DEPLOY_KEY", secrets=["DEPLOY_KEY"])
    (request,) = opened.asked
    assert request.arguments["secrets"] == ["DEPLOY_KEY"]
    assert result.stdout == "[secret:DEPLOY_KEY]\n"


async def test_an_answer_ahead_is_for_exactly_that_command_and_is_listed(opened: Opened) -> None:
    opened.answer = Decision(allow=True, scope="session", expires=600)
    async with opened.sandbox({"deny": "host", "command": "reboot"}) as sandbox:
        answer = await sandbox.host.request_access("uname -r", reason="to tell\nthe kernel")
        assert (answer.allowed, answer.scope) == (True, "namespace")
        assert "they say: to tell the kernel" in opened.asked[0].summary
        opened.answer = Decision(scope="session")
        for _ in "ab":
            assert not (await sandbox.host.request_access("uname -m")).allowed
        assert len(opened.asked) == 2
        opened.answer = False
        assert (await sandbox.host.exec("uname -r")).ok
        with pytest.raises(Denied):
            await sandbox.host.exec("uname -a")
        access = await sandbox.host.access()
        with pytest.raises(InvalidArgument, match="wildcard"):
            await sandbox.host.request_access("uname *")
    assert access.approved == ("uname -r",)
    assert access.blocked == ("reboot", "uname -m")


@pytest.mark.parametrize("written", ["project", "project/below", ""])
async def test_commands_do_not_run_where_programs_write_directly(opened: Opened, written: str) -> None:
    (opened.place / written).mkdir(exist_ok=True)
    options = {"workspace": opened.place / written, "workspace_mode": "direct"}
    async with opened.sandbox(options=options) as sandbox:
        with pytest.raises(Denied, match="programs of this sandbox write there directly"):
            await sandbox.host.exec("true")


async def test_each_command_is_on_record(opened: Opened) -> None:
    async with opened.sandbox() as sandbox:
        await sandbox.host.exec(["false"])
        rows = await sandbox.audit.tail(10)
    told = [(row.kind, row.detail.get("outcome")) for row in reversed(rows)]
    assert told[-2:] == [("crossing", "begun"), ("crossing", "failed")]
    assert "decision" in [kind for kind, _ in told]


async def test_what_is_no_program_is_an_error_and_leaves_nothing(opened: Opened) -> None:
    folder = opened.place / "programs"
    folder.mkdir()
    (folder / "broken").write_bytes(b"\x7fELF rubbish")
    (folder / "broken").chmod(0o755)
    async with opened.sandbox(path=[str(folder)]) as sandbox:
        with pytest.raises(CasemateError, match="not a program that the kernel can start"):
            await sandbox.host.exec(["broken"])
