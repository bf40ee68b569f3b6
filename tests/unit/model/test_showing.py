"""What objects show of themselves is inert, in a notebook, on a terminal and on one line, whatever a cell put there."""

from __future__ import annotations

import base64
import io
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from casemate import (
    ApprovalRequest,
    Artifact,
    Cause,
    Change,
    Crossing,
    Diff,
    Execution,
    IsolationReport,
    Mechanism,
    ProgramError,
    Proof,
    Result,
    SkippedFile,
    Usage,
)
from casemate.model.pictures import picture_of
from casemate.model.shown import Shown, ShownSession

SCRIPT = "<script>alert(1)</script>"
ACTIVE = "\x1b]52;c;aGk=\x07\x1b[8m\u202e\r\x9b2J\ud800"
LATEX = (
    r"$\href{javascript:x}{y}$ $$\require{x}$$ \(\cssId{a}{b}\) \[x\] \begin{align}\style{a}{b}\end{align} \eqref{x}"
)
EVIL = f"\"'>{LATEX}{SCRIPT}<img src=x onerror=alert(2)></pre></div></iframe>{ACTIVE}\nfiles: none"
# What a notebook may be asked to draw of ours.
TAGS = {"div": {"style"}, "span": {"style"}, "pre": {"style"}, "img": {"alt", "style", "src"}}
FRAME = {"sandbox", "referrerpolicy", "title", "style", "srcdoc"}
SPECIAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int = 2, height: int = 2, *more: bytes) -> bytes:
    rows = zlib.compress(b"\0\xff\0\0\0\0\xff" * 2)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"".join((b"\x89PNG\r\n\x1a\n", head, *more, chunk(b"IDAT", rows), chunk(b"IEND", b"")))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


REPORT = IsolationReport(
    EVIL, EVIL, (EVIL,), (EVIL,), (Proof(EVIL, False, EVIL),), 0.0, (Mechanism(EVIL, EVIL, True, EVIL, EVIL),),
    start=EVIL, start_reason=EVIL, notes=(EVIL,),
)  # fmt: skip
RESULTS = (
    Result({EVIL: EVIL}),
    Result({"text/plain": EVIL}),
    Result({"text/html": EVIL, "text/plain": EVIL}),
    Result(
        {"text/html": f"<a href='//evil.test/'>x</a><LINK rel=dns-prefetch href=//evil.test><svg><a\n/></svg>{EVIL}"}
    ),
    Result({"image/svg+xml": f"<svg onload=alert(1)>{EVIL}</svg>"}),
    Result({"image/png": encoded(SCRIPT.encode()), "text/plain": EVIL}),
    Result({"image/png": EVIL}),
    Result({"application/json": {EVIL: EVIL}}),
    Result({"text/markdown": EVIL}),
)
HOSTILE = Execution(
    id=EVIL, status="failed", exit_code=1, stdout=EVIL, stderr=EVIL, text=EVIL * 99, results=RESULTS,
    error=ProgramError(EVIL, EVIL, f"{EVIL}!"), artifacts=(Artifact(EVIL, 1, EVIL, EVIL, content=None),),  # type: ignore[arg-type]
    full_output=None, truncated=True, usage=Usage(0.1, 1 << 20, 1), duration=0.1, cause=Cause("timeout", EVIL, EVIL),
    isolation=REPORT, skipped=(SkippedFile(EVIL, EVIL),), state="lost", lost_names=(EVIL,), metadata={EVIL: EVIL},
    crossings=(Crossing(EVIL, 443, "denied", EVIL),),
)  # fmt: skip
REQUEST = ApprovalRequest(
    id=EVIL, kind="tool", summary=EVIL, namespace=EVIL, session=EVIL, run=EVIL, arguments={EVIL: EVIL}, hash=EVIL,
    server=EVIL, tool=EVIL, caller=EVIL,
)  # fmt: skip
DIFF = Diff((Change(EVIL, "renamed", source=EVIL, link_after=EVIL, diff=EVIL, refused=EVIL, conflict=EVIL),), EVIL, 3)


class Session(ShownSession):
    id, name, language, is_closed = EVIL, EVIL, EVIL, False


SHOWN = [HOSTILE, REQUEST, replace(REQUEST, kind="egress"), DIFF, REPORT, Session()]


class Seen(HTMLParser):
    """The tags of a document, with their attributes, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def bundle(shown: Shown) -> dict[str, str]:
    return shown._repr_mimebundle_()


def drawn(tag: str, result: Result) -> list[dict[str, str | None]]:
    """What the notebook draws for one result."""
    html = bundle(replace(HOSTILE, results=(result,)))["text/html"]
    return [attributes for name, attributes in Seen(html).tags if name == tag]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: type(one).__name__)
def test_nothing_of_a_cell_is_html_of_the_notebook(shown: Shown) -> None:
    html = bundle(shown)["text/html"]
    for tag, attributes in Seen(html).tags:
        assert attributes.keys() <= (FRAME if tag == "iframe" else TAGS[tag])
        assert tag != "iframe" or attributes["sandbox"] == ""
        assert tag != "img" or re.match(r"data:image/(png|jpeg|svg\+xml);base64,[\w+/=]*$", attributes["src"] or "")
    assert [one for one in Seen(html).texts if re.search(r"[$\\].", one)] == []  # where MathJax could find LaTeX
    assert SPECIAL.findall(re.sub('srcdoc="[^"]*"', "", html)) == []
    html.encode()


def test_html_of_a_program_can_fetch_follow_and_run_nothing() -> None:
    frames = [one for tag, one in Seen(bundle(HOSTILE)["text/html"]).tags if tag == "iframe"]
    assert len(frames) == 2
    for frame in frames:
        (charset, policy, style), rest = (tags := Seen(frame["srcdoc"] or "").tags)[:3], tags[3:]
        assert [charset[0], policy[0], style[0]] == ["meta", "meta", "style"]
        assert policy[1]["http-equiv"] == "Content-Security-Policy"
        assert (policy[1]["content"] or "").startswith("default-src 'none'; ")
        assert {tag for tag, _ in rest} & {"a", "link", "meta", "base", "iframe", "form", "object", "embed"} == set()


def test_a_page_that_a_program_shows_is_still_its_page() -> None:
    table = "<table><thead><tr><th>ä</th></tr></thead></table><abbr>b</abbr>"
    (frame,) = drawn("iframe", Result({"text/html": table}))
    assert (frame["srcdoc"] or "").endswith(table)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: type(one).__name__)
def test_the_text_beside_it_acts_upon_no_screen_and_fakes_no_line(shown: Shown) -> None:
    text = bundle(shown)["text/plain"]
    assert SPECIAL.findall(text) == []
    assert not re.search("^files: none", text, re.MULTILINE)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: type(one).__name__)
def test_a_terminal_with_rich_gets_nothing_that_it_acts_upon(shown: Shown) -> None:
    screen = io.StringIO()
    Console(file=screen, force_terminal=True, color_system="truecolor", width=100).print(shown)
    assert SPECIAL.findall(re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())) == []
    assert "╭" in screen.getvalue()


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: type(one).__name__)
def test_a_repr_is_a_line_of_at_most_two_hundred_characters(shown: Shown) -> None:
    assert str(shown) == repr(shown)
    assert len(repr(shown)) <= 200
    assert SPECIAL.findall(repr(shown)) == []
    assert "\n" not in repr(shown)


def test_an_execution_says_the_most_important_first() -> None:
    ran = replace(
        HOSTILE, id="e1", status="ok", exit_code=0, stdout="4\n", stderr="", text="4", error=None, results=(),
        artifacts=(), truncated=False, cause=None, skipped=(), state=None, lost_names=(), crossings=(),
    )  # fmt: skip
    assert repr(ran) == "<Execution ok in 0.1 s e1: '4'>"
    assert bundle(ran)["text/plain"] == "Execution ok in 0.1 s\nstdout:\n    4\nused: 0.1 s of cpu, 1 MiB\nid: e1"


def test_many_results_hide_no_error_and_what_is_drawn_is_bounded() -> None:
    much = Result({"text/html": "<p>" + "x" * (1 << 20)})
    html = bundle(replace(HOSTILE, results=(much,) * 60))["text/html"]
    assert html.count("<iframe") == 31
    assert len(html) < 40 << 20
    assert html.index("error:") < html.index("<iframe")
    assert re.findall(r"\d+ that are not shown here", html) == ["14 that are not shown here"]


def test_colours_are_left_out_and_what_is_long_is_cut_in_the_middle() -> None:
    text = bundle(replace(HOSTILE, stdout="\x1b[31mred\x1b[0m" + "x" * 30_000 + "end"))["text/plain"]
    assert "    redxxx" in text
    assert "xend" in text
    assert re.search(r"\[100\d\d characters are not shown\]", text)


def test_an_approver_is_shown_here_what_is_shown_elsewhere() -> None:
    from casemate.surfaces.cli.terminal import request_lines

    asked = replace(REQUEST, arguments={"path": "/etc/passwd\u202e", "n": 1})
    for line in request_lines(asked).strip().split("\n")[1:]:
        assert line.strip() in bundle(asked)["text/plain"]


def test_a_picture_is_only_what_is_drawn_of_it() -> None:
    data = png(2, 2, chunk(b"tEXt", SCRIPT.encode()), chunk(b"iCCP", b"x"))
    picture = picture_of({"image/png": encoded(data + b"trailing")})
    assert picture is not None
    assert (picture.media_type, picture.data, picture.width, picture.height) == ("image/png", png(), 2, 2)
    (image,) = drawn("img", Result({"image/png": encoded(data)}))
    assert image["src"] == f"data:image/png;base64,{encoded(png())}"


JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08\x00\x03\x00\x05\x01\x01\x11\x00\xff\xda"


def test_a_jpeg_has_the_size_that_it_says() -> None:
    picture = picture_of({"image/jpeg": encoded(JPEG)})
    assert picture is not None
    assert (picture.width, picture.height) == (5, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"", SCRIPT.encode(), png()[:-1], png()[:20], png(0, 5), png(1 << 31, 1), png(16_000, 16_000),
        png().replace(b"IDAT", b"IDAX"), b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b"x") + chunk(b"IEND", b""),
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"") + chunk(b"IEND", b""),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_picture_within_bounds_is_none(data: bytes) -> None:
    assert picture_of({"image/png": encoded(data)}) is None
    assert picture_of({"image/jpeg": encoded(data)}) is None


@pytest.mark.parametrize(
    "data", [JPEG[:10], JPEG[:4], JPEG.replace(b"\xff\xc0", b"\xff\xda"), b"\xff\xd8\xff" + b"\xff" * 99]
)
def test_a_jpeg_without_a_size_is_none(data: bytes) -> None:
    assert picture_of({"image/jpeg": encoded(data)}) is None


def test_a_bundle_of_anything_else_has_no_picture() -> None:
    others: list[dict[str, Any]] = [{}, {"image/png": 7}, {"image/gif": encoded(png())}, {"image/png": "é"}]
    assert [picture_of(one) for one in others] == [None] * 4


def test_a_line_of_an_execution_loads_neither_rich_nor_html() -> None:
    program = (
        "import sys; from tests.unit.model.test_showing import HOSTILE\n"
        "for name in [*sys.modules]:\n    if name.split('.')[0] in ('rich', 'html'): del sys.modules[name]\n"
        "repr(HOSTILE); assert not {'rich', 'html'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
