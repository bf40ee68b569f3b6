"""Pages of indexes: read strictly, and written so that installers read the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.packages.pages import BadPage, PageLink, read, write

URL = "https://index.test/simple/alpha/"
SHA = "a" * 64


def page(**file: object) -> bytes:
    return json.dumps({"files": [{"filename": "alpha-1.0-py3-none-any.whl", "url": "x.whl", **file}]}).encode()


def test_a_link_is_read_with_everything_that_is_said_of_it() -> None:
    body = page(
        hashes={"sha256": SHA.upper()},
        size=3,
        yanked="bad",
        **{"requires-python": ">=3", "core-metadata": {"sha256": SHA}},
    )
    (link,) = read(body, "application/vnd.pypi.simple.v1+json", URL)
    assert link == PageLink("alpha-1.0-py3-none-any.whl", f"{URL}x.whl", SHA, 3, ">=3", "bad", SHA, URL)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y.whl", "javascript:x", "http://", "http://h:99999/x"])
def test_an_address_that_is_none_of_http_is_left_out(url: str) -> None:
    assert read(page(url=url), "application/json", URL) == []


@pytest.mark.parametrize("name", ["../x.whl", "a/b.whl", "", ".whl", "a b.whl", "a\n.whl", "é.whl", "x" * 300])
def test_a_file_whose_name_is_none_is_left_out(name: str) -> None:
    assert read(page(filename=name), "application/json", URL) == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"files": 3}', b'{"files": [3]}', b"[" * 100_000, b'{"files": [{}]}', b"\xff"]
)
def test_what_is_no_page_is_refused(body: bytes) -> None:
    with pytest.raises(BadPage):
        read(body, "application/vnd.pypi.simple.v1+json", URL)


@given(st.binary(max_size=300))
def test_any_text_is_a_page_in_html_or_refused(body: bytes) -> None:
    try:
        read(body, "text/html", URL)
    except BadPage:
        pass


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("link", [
    PageLink("a-1.whl", f"{URL}files/a-1.whl", SHA, None, ">=3.9,<4", False, SHA),
    PageLink("a-1.whl", f"{URL}files/a-1.whl"),
    PageLink("a-1.whl", f"{URL}files/a-1.whl", SHA, None, '"><script>', "'\"<>", ""),
    PageLink("a-1.whl", f"{URL}files/a-1.whl", yanked=True),
])  # fmt: skip
def test_what_is_written_is_read_as_it_was(link: PageLink, as_json: bool) -> None:
    body = write("a", [(link, "files/a-1.whl")], as_json=as_json)
    assert read(body, "application/json" if as_json else "text/html", URL) == [replace(link, page=URL)]


def test_a_base_of_a_page_is_followed() -> None:
    body = b'<html><head><base href="https://files.test/x/"></head><a href="a-1.whl#sha256=' + SHA.encode() + b'">a</a>'
    assert read(body, "text/html", URL) == [PageLink("a-1.whl", "https://files.test/x/a-1.whl", SHA, page=URL)]
