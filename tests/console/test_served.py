"""What is served: files that are what they say, with headers that let a browser do no more than the console needs."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from tests.console.conftest import Answer, Browser

from casemate.surfaces import console
from casemate.surfaces.console.files import page_files

STATIC = Path(console.__file__).parent / "static"
OWN = sorted(path for path in STATIC.rglob("*.js") if path.parent.name != "vendor")
# Ways to have text run, or be read as markup.
WAYS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function|srcdoc="
    r"|javascript:|setTimeout\(\s*[\"'`]|createContextualFragment|setHTMLUnsafe"
)


def rules_of(answer: Answer) -> dict[str, str]:
    rules = (rule.strip().partition(" ") for rule in answer.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in rules}


@pytest.mark.parametrize("path", ["", "index.html", "app.js", "style.css", "vendor/htm-preact.js", "icon.svg"])
def test_every_file_is_served_with_the_rules_of_the_page(browser: Browser, path: str) -> None:
    answer = browser.ask("GET", f"/console/{path}")
    rules = rules_of(answer)
    assert answer.status == 200
    assert rules.pop("frame-src") == "'self' http://*.localhost:*"
    assert rules.pop("img-src") == "'self' data: blob:"
    assert {rules.pop(name) for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert rules == dict.fromkeys(
        ("default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types"), "'none'"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["frame.html", "frame.js"])
def test_the_frame_of_what_programs_give_reaches_nothing(browser: Browser, path: str) -> None:
    rules = rules_of(browser.ask("GET", f"/console/{path}"))
    assert rules["sandbox"] == "allow-scripts"
    assert "connect-src" not in rules
    assert (rules["default-src"], rules["img-src"], rules["script-src"]) == ("'none'", "data:", "'self'")


@pytest.mark.parametrize("origin", ["null", "http://evil.test"])
def test_the_script_of_that_frame_alone_is_served_whatever_page_asks(browser: Browser, origin: str) -> None:
    answer = browser.ask("GET", "/console/frame.js", Origin=origin)
    assert (answer.status, answer.headers.get("access-control-allow-origin")) == (200, None)
    pages = [f"/console/{name}" for name in page_files() if name != "frame.js"]
    for path in (
        *pages,
        "/console",
        "/console/frame.js/",
        "/console/session",
        "/v1/health",
        "/v1/openapi.json",
        "/mcp",
    ):
        assert browser.ask("GET", path, Origin=origin).status == 403, path
    assert browser.ask("POST", "/console/session", {"code": browser.code}, Origin=origin).status == 403
    assert browser.ask("POST", "/v1/sessions/list", {}, Origin=origin).status == 403


def test_a_file_that_a_browser_has_is_not_sent_again(browser: Browser) -> None:
    first = browser.ask("GET", "/console/ui.js")
    again = browser.ask("GET", "/console/ui.js", If_None_Match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/console", 308),
        ("GET", "/console/nothing", 404),
        ("GET", "/console/../v1/health", 404),
        ("GET", "/console/vendor", 404),
        ("GET", "/console/%2e%2e/files.py", 404),
        ("POST", "/console/app.js", 405),
        ("PUT", "/console/session", 405),
        ("POST", "/console/session", 400),
    ],
)
def test_there_is_nothing_else(browser: Browser, method: str, path: str, status: int) -> None:
    browser.key = "new"
    answer = browser.ask(method, path, None if method == "GET" else {"code": 1})
    assert answer.status == status
    assert path != "/console" or answer.headers["location"] == "console/"  # relative: there may be a prefix


def test_what_others_wrote_is_as_they_published_it_and_has_their_licence() -> None:
    lines = [line.split("  ") for line in (STATIC / "vendor/SHA256SUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    found = {path.name: path for path in (STATIC / "vendor").iterdir() if path.suffix in (".js", ".css")}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()} == listed
    told = (STATIC / "vendor/README.txt").read_text()
    assert all(name in told for name in listed)
    for name in ("htm", "preact", "uplot"):
        assert len((STATIC / f"vendor/LICENSE.{name}.txt").read_text()) > 1000


@pytest.mark.parametrize("path", OWN, ids=[str(path.relative_to(STATIC)) for path in OWN])
def test_no_script_reads_text_as_markup_or_has_it_run(path: Path) -> None:
    text = path.read_text()
    assert WAYS.findall(text) == []
    assert not re.search(r"https?://", text)
    assert all(found.startswith(("./", "../")) for found in re.findall(r'from "([^"]+)"', text))


def test_every_script_of_the_page_is_there_to_be_had() -> None:
    files = page_files()
    for name, file in files.items():
        for found in re.findall(rb'(?:from|import\()\s*"(\.[^"]+)"', file.content) if name.endswith(".js") else []:
            place = Path("/", name).parent / found.decode()
            assert str(Path("/").joinpath(place).resolve()).removeprefix("/") in files or "vendor" in name
    page = files["index.html"].content.decode()
    assert {one for one in re.findall(r'(?:href|src)="([^"]+)"', page) if one not in files} == set()
