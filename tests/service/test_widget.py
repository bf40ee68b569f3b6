"""``casemate.widget``: what waits is shown with buttons, and a button decides it, here and in a service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import Daemon
from tests.service.test_connected import KINDS, opened
from tests.support.waiting import until_async

import casemate
from casemate import InvalidArgument, Sandbox, Unavailable, sync
from casemate.surfaces.notebook import ApprovalWidget

BOTH = pytest.mark.parametrize("kind", KINDS)
FAR = "<img src=x onerror=alert(1)>\u202e"


@contextmanager
def shown_by(sandbox: Any) -> Iterator[ApprovalWidget]:
    widget = casemate.widget(sandbox)
    try:
        yield widget
    finally:
        widget.close()


def widgets_in(box: Any) -> Iterator[Any]:
    yield box
    for child in getattr(box, "children", ()):
        yield from widgets_in(child)


def button(widget: ApprovalWidget, name: str) -> Any:
    """The first of this name that is there now."""
    found = (one for one in widgets_in(widget.box) if hasattr(one, "click") and one.description == name)
    return next(found, None)


def having(widget: ApprovalWidget, trait: str, value: str) -> Any:
    return next(one for one in widgets_in(widget.box) if value in getattr(one, trait, ()))


def texts_of(widget: ApprovalWidget) -> str:
    return "".join(str(getattr(one, "value", "")) for one in widgets_in(widget.box))


@BOTH
async def test_a_person_allows_a_command_by_a_button_for_the_whole_session(
    kind: str, shared: Daemon, tmp_path: Path
) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session("shell") as session:
        with shown_by(sandbox) as widget:
            assert texts_of(widget) == "No request is pending."
            step = asyncio.create_task(session.run(f"echo '{FAR}'"))
            allow = await until_async(lambda: button(widget, "Allow"))
            shown = texts_of(widget).replace("<span>\\</span>", "\\")  # else front ends find LaTeX
            assert "&lt;img src=x onerror=alert(1)&gt;\\u202e" in shown
            assert "<img" not in texts_of(widget)
            having(widget, "options", "for this session").value = "session"
            await asyncio.to_thread(allow.click)
            assert (await step).stdout == f"{FAR}\n"
            await until_async(lambda: texts_of(widget) == "No request is pending.")
            assert (await session.run(f"echo '{FAR}'")).stdout == f"{FAR}\n"


@BOTH
async def test_a_denial_has_the_reason_that_a_person_gives(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session("shell") as session:
        with shown_by(sandbox) as widget:
            step = asyncio.create_task(session.run("echo no"))
            deny = await until_async(lambda: button(widget, "Deny"))
            having(widget, "placeholder", "reason").value = "not today"
            await asyncio.to_thread(deny.click)
            ended = await step
            assert (ended.status, ended.stdout) == ("denied", "")
            assert ended.cause is not None
            assert "not today" in ended.cause.message


async def test_many_wait_at_once_and_what_is_answered_elsewhere_goes(tmp_path: Path, shared: Daemon) -> None:
    async with opened("local", shared, tmp_path) as sandbox:
        with shown_by(sandbox) as widget:
            sessions = [sandbox.session("shell") for _ in range(3)]
            steps = [asyncio.create_task(one.run("echo yes")) for one in sessions]
            await until_async(lambda: len(sandbox.approvals.pending()) == len(widget._waiting) == 3)
            chosen = having(widget, "placeholder", "reason")
            chosen.value = "typed"
            gone = sandbox.approvals.pending()[-1]
            assert await gone.approve()
            await until_async(lambda: len(widget._waiting) == 2)
            assert having(widget, "placeholder", "reason") is chosen
            assert chosen.value == "typed"
            assert sandbox.approvals.deny_all() == 2
            await asyncio.gather(*steps)


async def test_an_answer_that_comes_too_late_says_so(tmp_path: Path, shared: Daemon) -> None:
    async with opened("local", shared, tmp_path) as sandbox, sandbox.session("shell") as session:
        with shown_by(sandbox) as widget:
            step = asyncio.create_task(session.run("echo yes"))
            deny = await until_async(lambda: button(widget, "Deny"))
            row = widget.box.children[0]
            assert sandbox.approvals.decide(sandbox.approvals.pending()[0].id, True)
            deny.click()
            assert row.children[-1].value.startswith("Too late")
            assert (await step).stdout == "yes\n"


def test_a_sandbox_without_await_has_it_too(tmp_path: Path) -> None:
    with sync.Sandbox(audit=tmp_path / "audit.db", preload=()) as sandbox, shown_by(sandbox) as widget:
        assert texts_of(widget) == "No request is pending."
        assert "application/vnd.jupyter.widget-view+json" in widget._repr_mimebundle_()


def test_where_ipywidgets_is_missing_the_extra_is_button(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(Unavailable, match=r"pip install '\.\[notebook\]'"):
        casemate.widget(Sandbox(audit=tmp_path / "audit.db"))


def test_what_is_no_sandbox_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="sandbox: int is not a sandbox"):
        casemate.widget(7)
