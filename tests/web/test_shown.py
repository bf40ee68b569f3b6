"""A page that shows what a hostile program left, in Chromium: nothing of it runs, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.console.browser import Page, chromium
from tests.support.loopback import serving
from tests.support.waiting import MAX_WAIT, until
from tests.unit.model.test_showing import HOSTILE, bundle

from casemate import Result

PAGE = """<img src={u}img><link rel=stylesheet href={u}css><link rel=prefetch href={u}prefetch>
<style>@import url({u}import);body{background:url({u}background)}</style>
<script>fetch('{u}script');top.document.title='taken'</script><meta http-equiv=refresh content="0;url={u}meta">
<iframe src={u}frame></iframe><object data={u}object></object><embed src={u}embed>
<video src={u}video poster={u}poster autoplay></video><audio src={u}audio autoplay></audio>
<svg><image href={u}svgimage /><use href={u}use#x /></svg><input type=image src={u}input>
<form action={u}form><input name=a autofocus onfocus="document.forms[0].submit()"></form>
<body onload="location='{u}onload'"><picture><source srcset={u}srcset><img></picture>
<base href={u}base/><img src=rel>"""
SVG = """<svg xmlns="http://www.w3.org/2000/svg" onload="fetch('{u}onload')">
<image href="{u}image" width="9" height="9"/>
<style>@import url({u}css);</style><foreignObject><img xmlns="http://www.w3.org/1999/xhtml" src="{u}foreign"/>
</foreignObject></svg>"""


@pytest.fixture
def fetched() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and what was asked of it."""
    paths: list[str] = []

    def note(request: BaseHTTPRequestHandler) -> None:
        paths.append(request.path)
        request.send_error(404)

    with serving(note) as port:
        yield f"http://127.0.0.1:{port}/", paths


@pytest.fixture
def shown_at(tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """Has a browser show a text as a page."""
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(MAX_WAIT * 1000)

        def show(body: str) -> Page:
            (file := tmp_path / "page.html").write_text(f"<meta charset=utf-8><title>ours</title>{body}")
            page.goto(file.as_uri(), wait_until="commit")
            return page

        yield show


@pytest.mark.full
@pytest.mark.needs("browser")
def test_what_a_hostile_program_shows_fetches_nothing_and_runs_nowhere(
    fetched: tuple[str, list[str]], shown_at: Callable[[str], Page]
) -> None:
    address, paths = fetched
    page, svg = PAGE.replace("{u}", address), SVG.replace("{u}", address)
    results = (Result({"text/html": page}), Result({"image/svg+xml": svg}), Result({"text/plain": page}))
    shown = bundle(replace(HOSTILE, results=results, stdout=page, stderr=page))["text/html"]
    ours = shown_at(shown)
    ours.wait_for_load_state("networkidle")
    assert (ours.title(), paths) == ("ours", [])
    shown_at(page)
    until(lambda: "/img" in paths, "the control")
