"""What matters in a page survives: its headings, table cells, code and links, and little besides.

Each page of ``pages`` has a reference beside it: what its text has, and what it lacks. Of a page of questions and
answers the main content is one answer; it is read whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.coroutines import pytest_pyfunc_call, runner

from casemate import Limits, Sandbox
from casemate.web.cells import PageText, markdown_of

__all__ = ["pytest_pyfunc_call", "runner"]

PAGES = sorted(Path(__file__).with_name("pages").glob("*.html"))


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    made = Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db")
    try:
        yield made
    finally:
        runner.run(made.close())


async def convert(sandbox: Sandbox, html: str, *, whole: bool = False) -> PageText:
    return await markdown_of(html, "https://site.test/docs/page", sandbox._context, "default", whole=whole)


def plain(text: str) -> str:
    """Without what tables are drawn with."""
    return "\n".join(" | ".join(cell.strip() for cell in line.strip("| ").split("|")) for line in text.split("\n"))


def test_there_are_enough_pages() -> None:
    assert len(PAGES) >= 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_headings_tables_code_and_links_survive(sandbox: Sandbox, page: Path) -> None:
    expected = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    found = await convert(sandbox, page.read_text(encoding="utf-8"), whole="whole" in expected)
    text = f"{found.text}\n{plain(found.text)}"
    assert [words for words in expected["has"] if words not in text] == [], found.text
    assert [words for words in expected["lacks"] if words in found.text] == [], found.text
    assert found.title == expected.get("title", found.title)


async def test_a_page_is_read_whole_however_little_programs_may_write(tmp_path: Path) -> None:
    async with Sandbox(limits=Limits(output=256, full_output=256), audit=tmp_path / "audit.db") as sandbox:
        assert "word " * 100 in (await convert(sandbox, f"<p>{'word ' * 200}</p>", whole=True)).text


async def test_the_whole_page_has_what_the_main_content_has_not(sandbox: Sandbox) -> None:
    found = await convert(sandbox, (PAGES[0].parent / "menus.html").read_text(encoding="utf-8"), whole=True)
    for words in ("NAVHOME", "MENUA", "SIDELINK", "## The rest", "FOOTERJUNK"):
        assert words in found.text
    assert ("NAVHOME", "https://site.test/home") in [(one.text, one.url) for one in found.links]


async def test_a_text_beyond_the_most_is_cut_and_says_so(sandbox: Sandbox) -> None:
    found = await convert(sandbox, f"<html><body><article><p>{'word ' * 300_000}</p></article></body></html>")
    assert (len(found.text), found.truncated) == (1_000_000, True)


@pytest.mark.parametrize(
    "html", ["", " ", "\0", "<", "<html>", "<!-- " * 1000, "\ud800", "&#x110000;", "<a href='http://['>x</a>"]
)
async def test_what_is_hardly_html_is_read_all_the_same(sandbox: Sandbox, html: str) -> None:
    assert isinstance((await convert(sandbox, html)).text, str)
