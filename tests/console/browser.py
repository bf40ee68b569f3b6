"""The console in Debian's Chromium, as Playwright drives it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.waiting import MAX_WAIT

from casemate.languages.browser import find_browser

__all__ = ["FULL", "Chromium", "Page", "chromium", "signed_in"]

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page
else:
    Chromium = Page = object

# Root has no sandbox there, and a container may have none; the tests' pages are casemate's own.
_ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP *.test ~NOTFOUND"]


# What people have. It sends other headers than the headless shell, which the rest of the tests use.
FULL = Path("/usr/lib/chromium/chromium")


@contextlib.contextmanager
def chromium(program: Path | None = None) -> Iterator[Chromium]:
    """A browser that resolves no name of a stranger's."""
    from playwright.sync_api import sync_playwright

    # As a person's window, but that nobody sees it.
    arguments = [*_ARGUMENTS, "--headless=new"] if program else _ARGUMENTS
    path = program or find_browser()[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(path), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def signed_in(browser: Chromium, link: str, *, width: int = 1280) -> Iterator[Page]:
    """The console at a link, in a profile of its own; an error that a page has not caught is raised at the end."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(MAX_WAIT * 1000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(link)
        page.wait_for_selector("main h1")
        yield page
        assert errors == []
    finally:
        context.close()
