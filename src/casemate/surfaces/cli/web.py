"""``casemate web``: searches and pages, by the user's service and under its rules."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from cyclopts import App

from casemate.model.call_options import USUAL_PAGE_SECONDS
from casemate.model.web import WaitUntil
from casemate.surfaces.cli.answers import print_answer, print_rows
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask_patiently
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.inert import inert
from casemate.surfaces.cli.parameters import Name

app = App(name="web", help="Search the web and read pages, each in a cell.")
_NO_SUCH_PAGE = 1  # the exit code where the server says that the page is not there


@app.command
def search(*words: Name, limit: int = 10, service: ServiceOptions = PLAIN) -> int:
    """Search the web, with the engines that the service's policy names.

    casemate web search landlock system calls

    Args:
        words: What to search for.
        limit: How many hits at most; 10 unless given.
    """
    hits = ask_patiently(service, "web.search", query=" ".join(words), limit=limit)
    return print_rows(hits, ("url", "title", "snippet", "engine"), "Nothing was found.", is_json=service.is_json)


@app.command
def fetch(
    url: Name, /, *, whole: bool = False, timeout: float = USUAL_PAGE_SECONDS, service: ServiceOptions = PLAIN
) -> int:
    """Print a page's main content as Markdown, or the text of a PDF; the exit code is 1 where the server has no page.

    casemate web fetch https://docs.python.org/3/library/asyncio.html

    Args:
        url: Its address, of http or https.
        whole: All of it, menus and comments included.
        timeout: Seconds; 30 unless given.
    """
    page = ask_patiently(service, "web.fetch", url=url, whole=whole, timeout=timeout)
    if page["robots"] == "disallowed":
        say("the site's robots.txt asks programs not to read this page")
    return _print_page(page, service)


@app.command
def browser(
    url: Name,
    /,
    *,
    wait_for: str | None = None,
    wait_until: WaitUntil = "networkidle",
    timeout: float = USUAL_PAGE_SECONDS,
    screenshot: Path | None = None,
    service: ServiceOptions = PLAIN,
) -> int:
    """Print what a headless browser has rendered of a page, as Markdown; the exit code is as of fetch.

    casemate web browser https://example.org --wait-for '#results li' --screenshot page.png

    Args:
        url: Its address, of http or https.
        wait_for: A CSS selector; the page is ready when something fits it.
        wait_until: load, domcontentloaded, or networkidle (unless given).
        timeout: Seconds; 30 unless given.
        screenshot: A file for a picture of the page, in PNG.
    """
    page = ask_patiently(
        service, "web.browse", url=url, wait_for_selector=wait_for, wait_until=wait_until, timeout=timeout,
        screenshot=screenshot is not None,
    )  # fmt: skip
    if screenshot is not None:
        from casemate.surfaces.cli.cp import write_target

        write_target(screenshot, base64.b64decode(page["screenshot"] or ""))
    return _print_page(page, service)


def _print_page(page: dict[str, Any], service: ServiceOptions) -> int:
    if page["truncated"]:
        say("this is not all of it")
    code = print_answer(page, inert(page["text"]).split("\n"), is_json=service.is_json)
    if page["status"] < 400:
        return code
    say(f"the server answered with status {page['status']}")
    return _NO_SUCH_PAGE
