"""Commands for what is outside of every cell: hosts, web pages, and the host's commands and files."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

from cyclopts import App, Parameter

from casemate.surfaces.cli.answers import print_answer, print_document, table_of
from casemate.surfaces.cli.commands import asks, row
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask_patiently
from casemate.surfaces.cli.failures import DENIED, TIMED_OUT, say
from casemate.surfaces.cli.inert import Inert, inert
from casemate.surfaces.cli.inputs import read, read_file

_NO_SUCH_PAGE = 1  # the exit code for an HTTP error
_MOST_CONTENT = (16 << 20) + 1  # bytes to read of a file: enough to see that it is too long
_NO_PAGE = "The exit code is 1 if the server answers with an error."


def _print_permission(answer: dict[str, Any], *, is_json: bool) -> int:
    print_document(answer, is_json=is_json)
    return 0 if answer["allowed"] else DENIED


egress = row(
    "egress.request", "domain --port --reason", _print_permission,
    "The exit code is 77 if it may not.\n\ncasemate egress pypi.org --reason 'for pandas'", may_wait=True,
)  # fmt: skip


# -- the web

web = App(name="web", help="Search the web and read pages, each in a cell.")


def _print_page(page: dict[str, Any], *, is_json: bool) -> int:
    if page.get("robots") == "disallowed":
        say("the site's robots.txt asks programs not to read this page")
    if page["truncated"]:
        say("the page is longer than this")
    code = print_answer(page, inert(page["text"]).split("\n"), is_json=is_json)
    if page["status"] < 400:
        return code
    say(f"the server answered with status {page['status']}")
    return _NO_SUCH_PAGE


search = row(
    "web.search", "*words=query --limit", table_of("url title snippet engine", "Nothing was found."),
    "casemate web search landlock system calls", may_wait=True, query=" ".join,
)  # fmt: skip
fetch = row(
    "web.fetch", "url --whole --timeout", _print_page,
    f"{_NO_PAGE}\n\ncasemate web fetch https://docs.python.org/3/library/asyncio.html", may_wait=True,
)  # fmt: skip
web.command(search, name="search")
web.command(fetch, name="fetch")


@web.command
@asks("web.browse", "url --wait-for=wait_for_selector --wait-until --timeout")
def browser(
    given: dict[str, Any],
    *,
    screenshot: Annotated[Path | None, Parameter(help="A file for a picture of the page, in PNG.")] = None,
    service: ServiceOptions = PLAIN,
) -> int:
    """Print a page as a headless browser renders it, as Markdown. The exit code is as for fetch.

    casemate web browser https://example.org --wait-for '#results li' --screenshot page.png
    """
    page = ask_patiently(service, "web.browse", **given, screenshot=screenshot is not None)
    if screenshot is not None:
        from casemate.surfaces.cli.cp import write_target

        write_target(screenshot, base64.b64decode(page["screenshot"] or ""))
    return _print_page(page, is_json=service.is_json)


# -- the host

host = App(name="host", help="Use commands and files of the host that the policy opens; most need an approval.")
access = App(name="access", help="Show what of the host is open, and ask for more.")


def _print_output(found: dict[str, Any], *, is_json: bool) -> int:
    if is_json:
        print_document(found, is_json=True)
    else:
        _write(found["stdout"].encode(), sys.stdout)
        _write(found["stderr"].encode(), sys.stderr)
        if found["truncated"]:
            say("it printed more than the policy keeps (host.output)")
        if found["status"] == "timeout":
            say(f"it was ended after {found['duration']:.1f} s")
    return TIMED_OUT if found["exit_code"] is None else int(found["exit_code"])


def _print_content(found: dict[str, Any], *, is_json: bool) -> int:
    if is_json:
        return print_document(found, is_json=True)
    _write(base64.b64decode(found["base64"]) if found["text"] is None else found["text"].encode(), sys.stdout)
    return 0


def _print_file(file: dict[str, Any], *, is_json: bool) -> int:
    return print_answer(file, [inert(f"{file['name']}: written")], is_json=is_json)


def _write(data: bytes, stream: TextIO) -> None:
    """Write untrusted bytes: unchanged, but inert on a terminal."""
    if stream.isatty():
        cleaner = Inert()
        data = cleaner.feed(data) + cleaner.end()
    stream.buffer.write(data)
    stream.flush()


def _content_of(source: str) -> str:
    data = read(0, _MOST_CONTENT) if source == "-" else read_file("source", source, _MOST_CONTENT)
    return base64.b64encode(data).decode()


@asks("host.copy", "source destination")
def _copy(given: dict[str, Any], *, service: ServiceOptions = PLAIN) -> int:
    """Copy a file between open folders, or into or out of a session.

    casemate host copy analysis:result.csv /srv/out/result.csv
    """
    found = ask_patiently(service, "host.copy", **given)
    copied = found or {"name": given["destination"], "kind": "file", "size": 0, "modified": 0.0}
    return _print_file(copied, is_json=service.is_json)


request = row(
    "host.request_access", "*command --reason", _print_permission,
    "The exit code is 77 if it may not be run.\n\n"
    'casemate host access request --reason "to see what changed" -- git status', may_wait=True,
)  # fmt: skip
show_access = row("host.access", "", print_document)
access.default(show_access)
access.command(show_access, name="list")
access.command(request, name="request")
host.command(access)
for _name, _command in {
    "list": row("host.list", "path", table_of("name kind size")),
    "exec": row(
        "host.exec", "*command --timeout --secret=secrets", _print_output,
        "The exit code is its own.\n\ncasemate host exec -- git log -n 3", may_wait=True,
    ),
    "read": row("host.read", "path --offset --limit?", _print_content, "casemate host read /srv/data/report.csv"),
    "write": row(
        "host.write", "path source=content", _print_file,
        "- is standard input.\n\ncasemate host write /srv/out/report.md report.md", may_wait=True, content=_content_of,
    ),
    "copy": _copy,
}.items():  # fmt: skip
    host.command(_command, name=_name)
