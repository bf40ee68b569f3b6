"""Each link between the documents leads to a heading, and names the page that it leads to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "decisions")]
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its code."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The name of a heading in an address, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def words(text: str) -> set[str]:
    """The words of ``text``, each by its first letters."""
    return {word[:5] for word in re.findall(r"\w{3,}", text.lower())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_names_what_it_leads_to(page: Path) -> None:
    for text, path, anchor in _LINK.findall(prose(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), (text, path)
        if target.suffix != ".md":
            continue
        headings = _HEADING.findall(prose(target))
        assert not anchor or anchor in map(slug, headings), (text, path, anchor)
        if text[0].isupper() or text.endswith(".md"):
            named = {*words(headings[0]), *words(target.stem), *words(anchor)}
            assert words(text.removesuffix(".md")) & named, (text, path, headings[0])
