"""The console's controls that no other test uses, each used as a person would, for what it is there for."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.brokered.conftest import SERVER
from tests.console.browser import Chromium, Page, signed_in
from tests.console.conftest import call, link_of
from tests.console.seeds import seeded_service
from tests.console.test_pages import open_session, step
from tests.service.daemon import Daemon
from tests.sessions.previewing import SITE
from tests.support.waiting import until
from tests.unit.policy.test_proposed import decided

from casemate.evidence.keys import own_signer
from casemate.evidence.pack import check_pack
from casemate.model.approval import Question

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [pytest.mark.needs("browser"), pytest.mark.needs("playwright")]


def show(page: Page, title: str) -> None:
    """Go to a page by its link."""
    page.get_by_role("navigation").get_by_role("link", name=title).click()
    page.get_by_role("heading", level=1, name=title).wait_for()


def finished(daemon: Daemon, code: str, **given: object) -> str:
    """A run that is over."""
    run = call(daemon, "runs.start", code=code, **given)["run"]
    call(daemon, "runs.wait", run=run)
    return str(run)


def downloaded(page: Page, press: Callable[[], None]) -> Path:
    """The file that the browser is given when something is pressed."""
    with page.expect_download() as fetched:
        press()
    return Path(fetched.value.path())


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_the_record_is_seen_to_be_whole_until_a_row_was_changed(real_browser: Chromium) -> None:
    with seeded_service() as daemon, signed_in(real_browser, link_of(daemon)) as page:
        finished(daemon, "print('said')")
        show(page, "Record")
        page.get_by_text("Is the record whole?").click()
        verdict = page.locator("details.card > p:last-child")
        press(page, "Verify")
        verdict.get_by_text("Whole: 2 rows").wait_for()
        page.get_by_label("Hash of a row").fill(verdict.locator(".hash").inner_text())
        press(page, "Verify")
        verdict.get_by_text("Whole: 2 rows").wait_for()
        page.get_by_label("Hash of a row").fill("f" * 64)
        press(page, "Verify")
        page.get_by_text("Broken at row").wait_for()
        page.get_by_label("Hash of a row").fill("")
        with sqlite3.connect(daemon.places.state.parent / "audit.db") as database:
            database.execute("DROP TRIGGER no_update")
            changed = database.execute("UPDATE record SET detail = replace(detail, 'said', 'none') WHERE sequence = 1")
            assert changed.rowcount == 1
        database.close()
        press(page, "Verify")
        page.get_by_text("Broken at row 1:").wait_for()


def test_the_evidence_of_a_run_is_downloaded_and_proves_it(page: Page, daemon: Daemon) -> None:
    run = finished(daemon, "open('left.txt', 'w').write('what is left')")
    finished(daemon, "print('another')")
    show(page, "Record")
    page.get_by_role("button", name=f"Rows of {run}").first.click()
    pack = downloaded(page, lambda: press(page, "Evidence pack of this run"))
    with pack.open("rb") as file:
        manifest, _ = check_pack(file, own_signer(daemon.env).public_keys())
    assert manifest["predicate"] == {"of": run, "statements": [run]}
    assert "left.txt" in json.dumps(manifest["subject"])
    page.get_by_text("Is the record whole?").click()
    saved = downloaded(page, lambda: press(page, "Save all rows")).read_text().splitlines()
    kept = call(daemon, "audit.export")
    assert [json.loads(line) for line in saved] == kept[: len(saved)]
    assert [row["run"] for row in kept[: len(saved)]].count(run) >= 2


def test_rows_of_the_record_are_found_by_kind_run_and_time(page: Page, daemon: Daemon) -> None:
    runs = [finished(daemon, f"print({number})") for number in range(52)]
    show(page, "Record")
    rows = page.locator("table.record tbody tr")
    until(lambda: rows.count() == 100)
    press(page, "Show up to 1000")
    until(lambda: rows.count() > 100)
    page.get_by_label("Kind").select_option("outcome")
    until(lambda: set(page.locator("table.record tbody td:nth-child(3)").all_inner_texts()) == {"outcome"})
    page.get_by_label("Run or session").fill(runs[0])
    page.get_by_label("Run or session").press("Enter")
    until(lambda: rows.count() == 1)
    rows.locator("summary").first.click()
    [row] = call(daemon, "audit.tail", kind="outcome", run=runs[0])
    assert rows.locator(".hash").inner_text() == row["hash"]
    page.get_by_label("From").fill("2099-01-01T00:00:00")
    page.get_by_text("The record has no such row").wait_for()
    press(page, "Clear")
    until(lambda: rows.count() > 100)
    finished(daemon, "print('later')")
    shown = rows.count()
    press(page, "Look again")
    until(lambda: rows.count() == shown + 2)


CROSSES = """
import socket
print(get_ipython().getoutput('echo yes'))
try:
    socket.create_connection(('rates.example.test', 443), 20).recv(1)
except OSError:
    print('refused')
"""
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def test_rules_are_proposed_from_what_was_used_and_refused_and_saved(page: Page, daemon: Daemon) -> None:
    session = call(daemon, "sessions.open")["session"]
    run = call(daemon, "runs.start", code=CROSSES, session=session)["run"]
    for kind, button in (("shell", "Allow once"), ("egress", "Deny")):
        card = page.get_by_role("article", name=f"{kind}:")
        card.get_by_role("button", name=button, exact=True).click()
    assert "refused" in call(daemon, "runs.wait", run=run)["execution"]["stdout"]
    call(daemon, "sessions.close", session=session)
    show(page, "Crossings and policy")
    used = page.get_by_role("region", name="What import socket used")
    used.get_by_text("rates.example.test:443").wait_for()
    page.get_by_label("Decision").select_option("allowed")
    used.get_by_text("rates.example.test:443").wait_for(state="detached")
    page.get_by_label("Decision").select_option("")
    page.get_by_label("Containing").fill("rates")
    page.get_by_label("Since").select_option("Last hour")
    press(page, "Look again")
    until(lambda: used.locator("tbody tr").count() == 1)
    page.get_by_role("link", name="Propose rules for import socket").click()
    saved = downloaded(page, lambda: press(page, "Save")).read_text()
    assert saved == page.get_by_role("region", name="The rules as YAML").inner_text()
    page.context.grant_permissions(CLIPBOARD)
    press(page, "Copy")
    page.get_by_text("The rules are in the clipboard").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == saved
    command, host = Question("shell", "", {"command": "echo yes"}), {"host": "rates.example.test", "port": 443}
    assert (decided(saved, command), decided(saved, Question("egress", "", host))) == ("allow", "ask")
    uncommented = re.sub("(?m)^#(?=  )", "", saved)
    assert decided(uncommented, Question("egress", "", host)) == "allow"


def test_a_session_gets_a_name_and_files_and_begins_anew(page: Page, daemon: Daemon, tmp_path: Path) -> None:
    show(page, "Runs and sessions")
    press(page, "Open a session…")
    page.get_by_role("dialog").get_by_label("Name").fill("lab")
    page.get_by_role("dialog").get_by_role("button", name="Open").click()
    page.get_by_label("Next step").fill(
        "import os\nos.makedirs('in/deep')\nopen('in/deep/b.txt', 'w').write('text of b')"
    )
    press(page, "Run")
    for name in ("in/", "deep/", "b.txt"):
        press(page, name)
    page.get_by_role("dialog").get_by_text("text of b").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    assert downloaded(page, lambda: press(page, "Download b.txt")).read_text() == "text of b"
    press(page, "↑ up")
    given = tmp_path / "given.txt"
    given.write_text("put there")
    page.get_by_label("Put files there").set_input_files(given)
    page.get_by_role("button", name="given.txt", exact=True).wait_for()
    assert call(daemon, "files.read", session="lab", path="in/given.txt")["text"] == "put there"
    given.rename(tmp_path / "deep")
    page.get_by_label("Put files there").set_input_files(tmp_path / "deep")
    page.get_by_role("complementary").get_by_role("alert").wait_for()  # there is a folder of that name
    call(daemon, "files.write", session="lab", path="in/later.txt", text="x")
    press(page, "Look again")
    page.get_by_role("button", name="later.txt", exact=True).wait_for()
    step(page, "kept = 1")
    page.get_by_role("button", name="kept", exact=True).wait_for()
    step(page, "while True: pass")
    page.get_by_role("complementary").get_by_role("button", name="Interrupt").click()
    page.get_by_text("KeyboardInterrupt").first.wait_for()
    press(page, "Reset")
    page.get_by_text("None yet.").wait_for()
    assert call(daemon, "sessions.variables", session="lab") == []
    call(daemon, "sessions.close", session="lab")


def test_what_a_program_serves_is_seen_in_a_frame_until_it_is_shown_no_more(page: Page, daemon: Daemon) -> None:
    session = open_session(page, daemon)
    step(page, SITE)
    page.locator(".execution[aria-busy=false]").wait_for()
    page.get_by_label("What listens at port").fill("8000")
    press(page, "Show it")
    frame = page.frame_locator("iframe.preview")
    frame.get_by_role("heading", name="hello").wait_for()
    link = page.locator("iframe.preview").get_attribute("src")
    press(page, "Look")
    until(lambda: page.locator("iframe.preview").get_attribute("src") != link)
    frame.get_by_role("heading", name="hello").wait_for()
    assert [one["port"] for one in call(daemon, "sessions.previews", session=session)] == [8000]
    press(page, "Show no more")
    page.locator("iframe.preview").wait_for(state="detached")
    assert call(daemon, "sessions.previews", session=session) == []
    call(daemon, "sessions.close", session=session)


def test_an_answer_holds_as_long_and_says_what_its_giver_wants(page: Page, daemon: Daemon) -> None:
    session = call(daemon, "sessions.open")["session"]
    given = {"code": "print(get_ipython().getoutput('echo again'))", "session": session}
    run = call(daemon, "runs.start", **given)["run"]
    card = page.get_by_role("article")
    card.get_by_text("Details", exact=True).click()
    card.get_by_role("button", name="Show the rule").click()
    page.context.grant_permissions(CLIPBOARD)
    card.get_by_role("button", name="Copy it").click()
    page.get_by_text("The rule is in the clipboard").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == card.locator(".rule").inner_text()
    card.get_by_text("More…").click()
    card.get_by_label("Allow the same").select_option("session")
    card.get_by_label("For how long").select_option("600")
    card.get_by_label("at most").fill("2")
    card.get_by_role("button", name="Allow until the session ends", exact=True).click()
    for one in (run, call(daemon, "runs.start", **given)["run"]):
        assert call(daemon, "runs.wait", run=one)["execution"]["stdout"] == "['again']\n"
    card.wait_for(state="detached")  # else the answer might be given on the card of the first
    run = call(daemon, "runs.start", **given)["run"]
    card.get_by_text("More…").click()
    card.get_by_label("telling the program").fill("not today")
    card.get_by_role("button", name="Deny", exact=True).click()
    assert "not today" in json.dumps(call(daemon, "runs.wait", run=run)["execution"])
    call(daemon, "sessions.close", session=session)


def test_a_person_fills_in_what_a_server_of_tools_asks_for(page: Page, daemon: Daemon, tmp_path: Path) -> None:
    call(
        daemon,
        "tools.add",
        name="w",
        definition={"command": sys.executable, "args": [str(SERVER), str(tmp_path / "log")]},
    )
    run = call(daemon, "runs.start", code="from mcptools.w.ask import run\nprint(run(text='who are you?'))")["run"]
    page.get_by_role("article", name="tool:").get_by_role("button", name="Allow once", exact=True).click()
    form = page.get_by_role("article", name="elicitation:")
    form.get_by_label("name (needed)").fill("Ada")
    allow = form.get_by_role("button", name="Allow once", exact=True)
    until(lambda: page.evaluate("document.querySelector('.more')?.click()") or allow.is_enabled())
    allow.click()
    assert '"name": "Ada"' in call(daemon, "runs.wait", run=run)["execution"]["stdout"]
    call(daemon, "tools.remove", name="w")


SHOWS = """
import base64
from IPython.display import display
display({'text/html': '<b>bold</b>', 'text/plain': 'in plain text'}, raw=True)
display({'application/pdf': base64.b64encode(b'%PDF-1.4 whole').decode()}, raw=True)
"""


def test_a_result_is_shown_as_another_type_and_a_document_is_downloaded(page: Page, daemon: Daemon) -> None:
    session = open_session(page, daemon)
    step(page, SHOWS)
    page.get_by_label("Show it as").select_option("text/plain")
    page.get_by_text("in plain text", exact=True).wait_for()
    button = page.get_by_role("button", name="Download application/pdf")
    assert downloaded(page, button.click).read_bytes() == b"%PDF-1.4 whole"
    call(daemon, "sessions.close", session=session)


def test_what_ended_before_the_page_hears_of_news_is_shown_all_the_same(page: Page, daemon: Daemon) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/audit/events", hold)
    with page.expect_response("**/v1/runs/list"):
        show(page, "Runs and sessions")
    run = finished(daemon, "print('unheard')")
    until(lambda: page.title() and held)
    held[0].continue_()
    assert run
    page.get_by_role("link", name="print('unheard')").wait_for()


def test_a_run_is_started_within_bounds_looked_at_and_interrupted(page: Page, daemon: Daemon) -> None:
    show(page, "Runs and sessions")
    for field, given, told in (
        ("At most", "1", "timeout"),
        ("Only these of the permitted hosts", "a.example *", re.compile("would be every host")),
    ):
        press(page, "Start a run…")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Program").fill("while True: pass")
        dialog.get_by_label(field).fill(given)
        dialog.get_by_role("button", name="Start", exact=True).click()
        page.get_by_text(told, exact=True).first.wait_for()
        page.get_by_role("link", name="All runs").click()
    run = call(daemon, "runs.start", code="print('begun', flush=True)\nwhile True: pass")["run"]
    page.get_by_role("link", name="print('begun', flush=True)").click()
    page.get_by_text("begun", exact=True).wait_for()
    press(page, "Look again")
    page.locator(".timeline").get_by_text("goes on").wait_for()
    press(page, "Interrupt")
    page.get_by_text("cancelled", exact=True).first.wait_for()
    assert call(daemon, "runs.wait", run=run)["execution"]["status"] == "cancelled"


def test_the_last_hour_is_read_as_a_table(page: Page, daemon: Daemon) -> None:
    finished(daemon, "print(1)")
    show(page, "Health")
    page.get_by_text("As a table").click()
    page.get_by_role("region", name="The last hour").get_by_text(re.compile(r"\d ok")).first.wait_for()


def test_whoever_is_done_signs_out_and_what_was_chosen_stays(page: Page) -> None:
    page.get_by_role("link", name="Skip to the page").press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    press(page, "Sound: off")
    page.reload()
    assert page.get_by_role("button", name="Sound: on").get_attribute("aria-pressed") == "true"
    press(page, "Sign out")
    page.get_by_text("To sign in, run this").wait_for()
    page.reload()
    page.get_by_text("To sign in, run this").wait_for()
