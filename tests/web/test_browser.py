"""Pages in a browser: real ones, in real cells, from a site on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import zlib
from pathlib import Path

import pytest
from tests.support.waiting import until_async
from tests.web.conftest import Browsing
from tests.web.site import Site

from casemate import CasemateError, Denied, InvalidArgument, QueueFull, Sandbox, SandboxClosed, Unavailable
from casemate.audit.log import AuditLog
from casemate.errors import WebUnavailable
from casemate.languages import browser
from casemate.model.operation import Audience, Principal, called_by
from casemate.web import browser as web_browser
from casemate.web.browser import Browsers

pytestmark = pytest.mark.needs("browser")


def browsers_here() -> list[int]:
    """The browser's processes below this one, each by its number."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition(" (")[2].rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(folder.name)] = int(rest.split()[1])
            if name.startswith("chrom"):
                found.append(int(folder.name))

    def is_below(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_below(parents[pid]))

    return [pid for pid in found if is_below(pid)]


async def test_a_page_is_taken_as_its_scripts_have_built_it(browse: Browsing) -> None:
    page = await browse("/built", wait_for_selector="b.late")
    assert (page.url, page.status, page.title) == (f"{browse.site.address}/built", 200, "Built")
    assert "<i>six times seven is 42</i>" in page.html
    assert "built late" in page.html
    assert (page.screenshot, page.downloads) == (None, ())


async def test_a_page_of_an_error_is_a_page_with_its_status(browse: Browsing) -> None:
    page = await browse("/nothing")
    assert (page.status, "there is nothing" in page.html) == (404, True)


async def test_where_a_page_goes_on_by_itself_the_next_is_taken(browse: Browsing) -> None:
    page = await browse("/goes-on", wait_for_selector="p")
    assert (page.url, page.title) == (f"{browse.site.address}/plain", "Plain")


async def test_networkidle_waits_for_what_a_page_asks_for_when_it_is_there(browse: Browsing) -> None:
    page = await browse("/asks-later", wait_until="networkidle")
    assert "characters came" in page.html


async def test_domcontentloaded_waits_for_no_picture_and_load_does(browse: Browsing) -> None:
    page = await browse("/endless", wait_until="domcontentloaded")
    assert (page.title, "words" in page.html) == ("Endless", True)
    with pytest.raises(WebUnavailable, match=r"'load' did not come in 1 s.*\n.*domcontentloaded") as raised:
        await browse("/endless", timeout=1.0)
    assert (raised.value.reason, raised.value.url) == ("timeout", f"{browse.site.address}/endless")


async def test_a_missing_selector_is_named_and_nothing_ends(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casemate.web.tab._LOOK_EVERY", 0.0)  # the time ends while it looks
    await browse("/plain")
    before = browsers_here()
    with pytest.raises(WebUnavailable, match=r"'#never' did not come in 5 s") as raised:
        await browse("/plain", wait_for_selector="#never", timeout=5.0)
    assert raised.value.reason == "timeout"
    assert (await browse("/plain")).title == "Plain"
    assert set(before) & set(browsers_here())


@pytest.mark.parametrize("selector", ["<<", "", "p[", 7])
async def test_what_is_no_selector_is_told_before_anything_is_asked_for(browse: Browsing, selector: object) -> None:
    with pytest.raises(InvalidArgument, match=r"wait_for_selector.*such as"):
        await browse("/plain", wait_for_selector=selector)
    assert browse.site.paths() == []


async def test_a_picture_is_a_png_of_what_is_seen_first(browse: Browsing) -> None:
    picture = (await browse("/red", screenshot=True)).screenshot
    assert picture is not None
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = [], 8
    while at < len(picture):
        length, kind = struct.unpack_from(">I4s", picture, at)
        chunks.append((kind, picture[at + 8 : at + 8 + length]))
        at += length + 12
    width, height, depth, colours = struct.unpack_from(">IIBB", chunks[0][1])
    assert (width, height, depth, colours, chunks[-1][0]) == (1280, 800, 8, 2, b"IEND")
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    assert (len(pixels), pixels[1:4]) == (height * (1 + 3 * width), b"\xff\0\0")  # red


async def test_what_a_page_downloads_is_handed_out(browse: Browsing) -> None:
    page = await browse("/downloads", timeout=60.0, wait_for_selector="b")  # which comes when the download has begun
    (file,) = page.downloads
    assert (file.name.split("/")[-1], file.read_bytes(), file.media_type) == ("_report.csv", b"a,b\n1,2\n", "text/csv")
    assert "words" in page.html
    page = await browse("/report")
    assert [(one.size, one.read_bytes()) for one in page.downloads] == [(8, b"a,b\n1,2\n")]
    assert (await browse("/plain")).downloads == ()


async def test_a_download_that_never_ends_is_told(browse: Browsing) -> None:
    with pytest.raises(WebUnavailable, match=r"the end of a download did not come in 20 s"):
        await browse("/half", timeout=20.0)


async def test_nothing_that_a_page_keeps_is_there_for_the_next_call(browse: Browsing) -> None:
    first, second = await browse("/keeps"), await browse("/keeps")
    assert first.html == second.html
    assert "kept undefined" in second.html
    await browse("/sets")
    await browse("/plain")
    assert [cookie for _, cookie in browse.site.requests if cookie] == []


async def test_dialogs_are_dismissed(browse: Browsing) -> None:
    assert "false null" in (await browse("/dialogs")).html


async def test_a_page_opens_no_other(browse: Browsing) -> None:
    assert (await browse("/pops-up", wait_until="networkidle")).title == "over"
    assert "/popped" not in browse.site.paths()


async def test_a_page_that_spins_ends_with_its_time_and_the_next_comes(browse: Browsing) -> None:
    with pytest.raises(WebUnavailable, match=r"did not come in 1 s"):
        await browse("/spins", timeout=1.0)
    assert (await browse("/plain")).title == "Plain"


async def test_a_page_that_eats_memory_costs_its_call_and_the_next_has_a_new_browser(browse: Browsing) -> None:
    with pytest.raises(WebUnavailable, match=r"limits.memory, 1 GiB") as raised:
        await browse("/eats", timeout=90.0)
    assert raised.value.reason == "memory"
    assert (await browse("/plain")).title == "Plain"


async def test_a_page_that_says_too_much_ends_its_browser(browse: Browsing) -> None:
    with pytest.raises(WebUnavailable, match=r"more than 64 MiB|limits.memory"):
        await browse("/says-much", timeout=90.0)
    assert (await browse("/plain")).title == "Plain"


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "chrome://version", "view-source:http://good.test/", "data:text/html,x", "about:blank",
     "javascript:1", "ftp://good.test/", "http://u:p@good.test/", "http:///x", "good.test", "", "http://a b/", None],
)  # fmt: skip
async def test_an_address_that_is_none_of_http_is_refused_before_anything_starts(
    browse: Browsing, url: str | None
) -> None:
    with pytest.raises(InvalidArgument, match=r"url"):
        await browse.browsers.browse(
            url,  # type: ignore[arg-type]
            wait_for_selector=None, wait_until="load", timeout=9.0, screenshot=False,
        )  # fmt: skip
    assert browsers_here() == []


@pytest.mark.parametrize("how", ["redirect", "script"])
@pytest.mark.parametrize("to", ["file:///etc/passwd", "chrome://version", "view-source:file:///etc/passwd"])
async def test_no_page_leads_to_the_cells_files_or_the_browsers_own_pages(browse: Browsing, how: str, to: str) -> None:
    if how == "redirect":
        with pytest.raises(WebUnavailable, match=r"ERR_(UNSAFE_REDIRECT|ABORTED)"):
            await browse(f"/{how}?{to}")
    else:
        page = await browse(f"/{how}?{to}", wait_until="networkidle")
        assert page.url == f"{browse.site.address}/{how}?{to}"
        assert "user:x:1000" not in page.html


async def test_a_page_that_ends_at_none_of_http_is_none(browse: Browsing) -> None:
    with pytest.raises(WebUnavailable, match=r"'about:blank', which is not an http or https address") as raised:
        await browse("/script?about:blank", wait_for_selector="#never", timeout=20.0)
    assert raised.value.reason == "url"


@pytest.mark.parametrize("wait_until", ["", "LOAD", "networkidle0", None])
async def test_what_can_be_waited_for_is_told(browse: Browsing, wait_until: object) -> None:
    with pytest.raises(InvalidArgument, match=r"wait_until.*load, domcontentloaded, networkidle"):
        await browse("/plain", wait_until=wait_until)


async def test_several_pages_are_taken_at_once_each_its_own(browse: Browsing) -> None:
    pages = await asyncio.gather(*(browse(f"/nothing?{n}") for n in range(6)), browse("/built"))
    assert [page.url.partition("?")[2] for page in pages] == [*map(str, range(6)), ""]


def agent(name: str) -> Principal:
    return Principal(name, Audience.AGENT)


async def test_each_caller_has_a_browser_of_its_own(browse: Browsing, audit: Path) -> None:
    for name in ("one", "two", "one"):
        with called_by(agent(name)):
            await browse("/plain")
    log = AuditLog(audit)
    rows = [json.loads(row.detail) for row in log.tail(100) if row.kind == "intent"]
    log.close()
    assert [(row["caller"], row["language"], row["program"]) for row in rows] == [
        ("one", "command", "/bin/sh"), ("two", "command", "/bin/sh")
    ]  # fmt: skip


async def test_a_caller_more_than_may_be_takes_the_place_of_one_who_is_idle(
    browse: Browsing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_browser, "_MOST_BROWSERS", 1)
    with called_by(agent("one")):
        await browse("/plain")
    first = browsers_here()
    with called_by(agent("two")):
        assert (await browse("/plain")).title == "Plain"
    assert not set(first) & set(browsers_here())
    with called_by(agent("two")):
        waiting = asyncio.ensure_future(browse("/endless"))
        await until_async(lambda: "/held" in browse.site.paths())
    with called_by(agent("one")), pytest.raises(QueueFull, match=r"1 browsers are in use"):
        await browse("/plain")
    browse.site.release.set()
    assert (await waiting).title == "Endless"


async def test_a_browser_that_nobody_uses_ends(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_browser, "_IDLE_SECONDS", 0.1)
    await browse("/plain")
    await until_async(lambda: browsers_here() == [])
    assert (await browse("/plain")).title == "Plain"


async def test_a_browser_takes_so_many_calls_and_no_more(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_browser, "_MOST_CALLS", 1)
    await browse("/plain")
    first = browsers_here()
    await browse("/plain")
    await until_async(lambda: not set(first) & set(browsers_here()))


async def test_close_ends_every_browser_and_what_goes_on_in_it(browse: Browsing) -> None:
    waiting = asyncio.ensure_future(browse("/endless"))
    await until_async(lambda: "/held" in browse.site.paths())
    assert browsers_here() != []
    await browse.browsers.close()
    assert browsers_here() == []
    with pytest.raises(SandboxClosed):
        await waiting
    await browse.browsers.close()
    with pytest.raises(SandboxClosed):
        await browse("/plain")


async def test_a_call_that_is_cancelled_leaves_the_browser_as_it_was(browse: Browsing) -> None:
    waiting = asyncio.ensure_future(browse("/endless"))
    await until_async(lambda: "/held" in browse.site.paths())
    before = browsers_here()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await browse("/plain")).title == "Plain"
    assert set(before) & set(browsers_here())


async def test_what_a_browser_was_is_on_record(browse: Browsing, audit: Path) -> None:
    await browse("/plain")
    await browse.browsers.close()
    log = AuditLog(audit)
    rows = [(row.kind, json.loads(row.detail)) for row in log.tail(100)]
    log.close()
    assert [kind for kind, _ in rows] == ["intent", "crossing", "outcome"]
    assert rows[0][1]["limits"]["processes"] == 400
    crossing = {"host": "host.casemate.internal", "port": browse.site.port, "decision": "allowed"}
    assert crossing.items() <= rows[1][1].items()
    assert rows[2][1]["status"] in ("killed", "ok")  # a browser whose pipe is closed may end by itself before


async def test_without_a_network_there_is_no_page(audit: Path) -> None:
    async with Sandbox(network="none", audit=audit) as sandbox:
        browsers = Browsers(lambda: sandbox._context, "default")
        with pytest.raises(Denied, match=r"has no network.*\n.*allowed_domains"):
            await browsers.browse(
                "http://good.test/", wait_for_selector=None, wait_until="load", timeout=9.0, screenshot=False
            )


async def test_a_host_that_no_rule_names_is_denied_by_its_name(browse: Browsing) -> None:
    with pytest.raises(Denied, match=r"nobody.test: no rule allows it") as raised:
        await browse("http://nobody.test/")
    assert "allowed_domains" in raised.value.remediation


async def test_a_machine_without_a_browser_says_how_to_get_one(
    browse: Browsing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(browser, "_PLACES", (str(tmp_path / "none"),))
    with pytest.raises(Unavailable, match=r"no browser on this machine\n.*apt-get install chromium-headless-shell"):
        await browse("/plain")
    for given in (str(tmp_path), "/usr/bin/chromium-headless-shell", "relative", "/bin/nothing"):
        monkeypatch.setenv("CASEMATE_BROWSER", given)
        with pytest.raises(Unavailable, match=rf"CASEMATE_BROWSER={given} is not a program"):
            await browse("/plain")
    monkeypatch.setenv("CASEMATE_BROWSER", "/bin/true")
    with pytest.raises(CasemateError, match=r"browser has ended.*\n.*true --version"):
        await browse("/plain")


@pytest.mark.parametrize("place", ["/article", "/report"])
async def test_a_sandbox_makes_text_of_what_its_browser_has_rendered(site: Site, audit: Path, place: str) -> None:
    async with Sandbox(allow_local=[site.port], audit=audit) as sandbox:
        page = await sandbox.web.browse(f"{site.address}{place}", wait_until="load", screenshot=True)
    if place == "/article":
        assert (page.title, page.screenshot is not None, page.downloads) == ("Article", True, ())
        assert "7: words of an article" in page.text
    else:
        assert (page.text, [one.read_bytes() for one in page.downloads]) == ("", [b"a,b\n1,2\n"])
    assert browsers_here() == []
