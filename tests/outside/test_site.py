"""MkDocs builds the documentation site without a warning, and each link and picture in it leads somewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from tests.outside.environments import ROOT, mkdocs

SECONDS = 600  # on a busy machine; it takes twenty
HOST = "http://site"  # the address of the built site, in links that are made absolute


@dataclass
class Page(HTMLParser):
    """A page of the site: its links (the tag and the address) and its anchors."""

    links: list[tuple[str, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [(tag, value) for name, value in attrs if name in ("href", "src") and value]
        self.anchors |= {value for name, value in attrs if name in ("id", "name") and value}


def pages_of(site: Path) -> dict[Path, Page]:
    pages = {file: Page() for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        page.feed(file.read_text(encoding="utf-8"))
    return pages


def links_of(site: Path, pages: dict[Path, Page]) -> Iterator[tuple[str, str, str]]:
    """Each link of the site: the page that has it, the tag, and the address as a browser resolves it."""
    for file, page in pages.items():
        place = f"/{file.relative_to(site)}"
        for tag, link in page.links:
            yield place, tag, urljoin(HOST + place, link)


def dead_links(site: Path) -> list[str]:
    """The links within the site that lead to no file or to no anchor."""
    pages, dead = pages_of(site), []
    for place, _, address in links_of(site, pages):
        parts = urlsplit(address)
        if f"{parts.scheme}://{parts.netloc}" != HOST:
            continue
        target = site / unquote(parts.path).lstrip("/")
        target = target / "index.html" if target.is_dir() else target
        anchor = unquote(parts.fragment)
        if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
            dead.append(f"{place}: {address.removeprefix(HOST)}")
    return sorted(set(dead))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. With `--strict`, a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [str(mkdocs()), "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme's makers about its successor
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_link_and_picture_of_the_site_leads_somewhere(site: Path) -> None:
    pages = pages_of(site)
    assert len(pages) > len(list(ROOT.glob("docs/**/*.md")))
    assert dead_links(site) == []


def test_no_page_of_the_site_loads_anything_from_another_host(site: Path) -> None:
    links = links_of(site, pages_of(site))
    assert [link for link in links if link[1] != "a" and not link[2].startswith((HOST, "data:"))] == []


def test_every_public_name_is_in_the_reference_by_its_docstring(site: Path) -> None:
    import casemate

    page = pages_of(site)[site / "docs" / "reference" / "python" / "index.html"]
    names = [name for name in dir(casemate) if name[0].isalpha() and name != "Event"]  # a union of other names
    assert [name for name in names if f"casemate.{name}" not in page.anchors] == []


def test_a_link_to_a_missing_page_anchor_or_picture_is_dead(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h1 id="there">There</h1>')
    links = ("other/", "other/#there", "other/#missing", "missing/", "https://example.org/missing")
    html = "".join(f'<a href="{link}">.</a>' for link in links)
    (tmp_path / "index.html").write_text(html + '<img src="missing.png">')
    assert dead_links(tmp_path) == [
        "/index.html: /missing.png", "/index.html: /missing/", "/index.html: /other/#missing",
    ]  # fmt: skip
