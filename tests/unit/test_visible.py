"""One table of characters that do not show, taken through everything that shows text of strangers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

import casemate.visible
from casemate.errors import InvalidArgument
from casemate.evidence.page import page_of
from casemate.execution.request import check_name
from casemate.files.names import display_path, problem
from casemate.files.protected import Protection
from casemate.model.showing import Part, Summary, html_of
from casemate.policy.host import words_of
from casemate.policy.patterns import pattern
from casemate.policy.shown import escape_text, request_text, shown_value
from casemate.surfaces.cli.inert import Inert
from casemate.surfaces.kernel.outcome import error_content
from casemate.surfaces.mcp.answers import above
from casemate.tools.modules.generate import visible_text
from casemate.tools.shell import answer_text
from casemate.visible import inert, is_plain, visible

PAGE = Path(casemate.visible.__file__).parent / "surfaces/console/static/ui.js"
# Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt), blank letters, separators and controls.
RANGES = """0000-0008 000B-001F 007F-009F 00AD 034F 061C 115F-1160 17B4-17B5 180B-180F 200B-200F 2028-202E 2060-206F
2800 3164 FE00-FE0F FEFF FFA0 FFF0-FFFB 13430-1343F 1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"""
ENDS = [[int(end, 16) for end in one.split("-")] for one in RANGES.split()]
UNSEEN = [chr(number) for ends in ENDS for number in range(ends[0], ends[-1] + 1)]
SAMPLES = [chr(number) for ends in ENDS for number in dict.fromkeys(ends)] + list(
    "\u2066\u3164\u200d\ufe0f\u200c\udc80"
)
EMOJI = ["👩\u200d🚀", "👩🏽\u200d💻", "❤\ufe0f", "❤\ufe0f\u200d🔥", "🏳\ufe0f\u200d🌈", "1\ufe0f\u20e3", "⚠\ufe0f done"]
JOINED = ["می\u200cخواهم", "क्\u200dष"]  # noqa: RUF001 - as they are written
LOOSE = ["a\u200db", "a\ufe0fb", "👩\u200db", "می\u200c", "❤\ufe0f\ufe0f", "1\ufe0fa", "👩\u200d\u200d🚀"]


def on_terminal(text: str) -> str:
    screen = Inert()
    return (screen.feed(text.encode("utf-8", "surrogatepass")) + screen.end()).decode()


def as_html(text: str) -> str:
    return html_of(Summary(text, (("fact", text),), (Part("label", text),)))


OUTPUT: dict[str, Callable[[str], str]] = {
    "terminal": on_terminal,
    "notebook": as_html,
    "kernel": lambda text: str(error_content(InvalidArgument(text, text))["traceback"]),
    "evidence page": lambda text: page_of({text: [text]}),
    "file name": lambda text: display_path((text.encode("utf-8", "surrogatepass"),)),
    "line": visible,
    "lines": inert,
}
DECIDED: dict[str, Callable[[str], str]] = {
    "approver": lambda text: request_text("x", kind="tool", server=text, tool=text, summary="", arguments={text: text}),
    "summary": escape_text,
    "value": shown_value,
    "tool module": visible_text,
    "shell": lambda text: answer_text("ok", text),
    "MCP answer": lambda text: above("", [text]),
}


@pytest.mark.parametrize("name", [*OUTPUT, *DECIDED])
def test_no_renderer_lets_through_what_does_not_show(name: str) -> None:
    render = {**OUTPUT, **DECIDED}[name]
    usual = {*render("ab"), "\n", "\r", "\ufffd"}
    for one in UNSEEN:
        assert one in usual or one not in render(f"a{one}b"), f"U+{ord(one):04X}"
    assert "\udc80" not in render("a\udc80b")


@pytest.mark.parametrize("text", [*EMOJI, *JOINED])
def test_output_keeps_emoji_and_joined_letters_and_what_is_decided_on_does_not(text: str) -> None:
    for name in ("terminal", "notebook", "evidence page", "line"):
        assert text in OUTPUT[name](text), name
    for name, render in DECIDED.items():
        assert not set("\u200c\u200d\ufe0f") & set(render(text)), name


@pytest.mark.parametrize("text", [*EMOJI, *JOINED, *LOOSE])
def test_the_terminal_shows_the_same_however_its_output_is_cut(text: str) -> None:
    data = f"x{text}y".encode()
    whole = visible(f"x{text}y")
    for place in range(len(data)):
        screen = Inert()
        assert (screen.feed(data[:place]) + screen.feed(data[place:]) + screen.end()).decode() == whole


@pytest.mark.parametrize("text", LOOSE)
def test_a_joiner_stays_nowhere_else(text: str) -> None:
    assert visible(text) != text


@pytest.mark.parametrize("one", SAMPLES)
def test_no_name_or_rule_has_what_does_not_show(one: str) -> None:
    assert problem(f"a{one}b".encode("utf-8", "surrogatepass"))
    assert not is_plain(f"a{one}b")
    assert Protection().reason((f".gi{one}t", "config"))
    with pytest.raises(InvalidArgument):
        check_name(f"a{one}b")
    with pytest.raises(InvalidArgument):
        words_of(["echo", f"a{one}b"])
    with pytest.raises(ValueError, match="invisible characters"):
        pattern({"like": f"a{one}b*"}, narrowly=False)


def test_all_that_unicode_calls_a_format_is_known_but_signs_that_show() -> None:
    formats = {chr(n) for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n)) in ("Cc", "Cf", "Zl", "Zp")}
    shown = {one for one in formats if visible(f"a{one}b") == f"a{one}b"}
    assert shown <= set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")


def test_the_page_of_the_service_has_the_same_set() -> None:
    pattern_in_python = re.sub(r"\\U000([0-9a-f]{5})", r"\\u{\1}", casemate.visible.SPECIAL)
    assert f"/{pattern_in_python}/gu" in PAGE.read_text(encoding="utf-8")


def test_the_page_of_the_service_shows_what_python_shows() -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("there is no node")
    hidden = re.search(r"^  (/.*/gu);$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert hidden is not None
    texts = [*EMOJI, *JOINED, *(f"a{one}b" for one in UNSEEN if one != "\r")]
    script = f"process.stdout.write(require('fs').readFileSync(0, 'utf8').replace({hidden[1]}, '?'))"
    said = subprocess.run([node, "-e", script], input="\n".join(texts).encode(), capture_output=True, check=True)
    assert said.stdout.decode().split("\n") == [re.sub(casemate.visible.SPECIAL, "?", text) for text in texts]
