"""Searches ask whom the policy names, one after another, and say what each said where none answers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.visits import World
from tests.network.web_site import SEARCH

from casemate import Denied, InvalidArgument, SearchHit, Unavailable, WebUnavailable, sync
from casemate.web.search import Engines

SEARXNG = f"http://other.test:{SEARCH}"


def searching(audit: Path, web: dict[str, Any], **options: Any) -> sync.Sandbox:
    return sync.Sandbox(audit=audit, policy={"web": web}, **options)


def test_a_searxng_is_asked_and_its_hits_have_one_form(world: World, audit: Path) -> None:
    with searching(audit, {"searxng": SEARXNG}) as sandbox:
        hits = sandbox.web.search("long rivers", limit=3)
        assert hits[0] == SearchHit("long rivers 0", "https://rivers.test/0", "All about it", "some engine")
        assert len(hits) == 3
        assert len(sandbox.web.search("long rivers")) == 10
        assert sandbox.web.search("nothing") == []


def test_only_searches_reach_the_hosts_of_engines(world: World, audit: Path) -> None:
    with searching(audit, {"searxng": SEARXNG}) as sandbox:
        with pytest.raises(Denied, match=r"other\.test"):
            sandbox.web.fetch(f"{SEARXNG}/search?q=x&format=json")
        execution = sandbox.run(f"import socket; socket.create_connection(('other.test', {SEARCH}), 5)")
        assert not execution.ok


@pytest.mark.parametrize(
    "more", [{"network": "none"}, {"policy": {"web": {"searxng": SEARXNG}, "denied_domains": ["other.test"]}}]
)
def test_what_denies_a_host_wins_over_the_web_section(world: World, audit: Path, more: dict[str, Any]) -> None:
    options = {"policy": {"web": {"searxng": SEARXNG}}, **more}
    with sync.Sandbox(audit=audit, **options) as sandbox, pytest.raises((Denied, WebUnavailable)):
        sandbox.web.search("rivers")


def test_a_searxng_of_this_machine_is_reached_on_its_loopback(world: World, audit: Path) -> None:
    with local_service() as port, searching(audit, {"searxng": f"http://127.0.0.1:{port}/sub"}) as sandbox:
        assert sandbox.web.search("here")[0].title == "here at /sub/search"


@contextlib.contextmanager
def local_service() -> Iterator[int]:
    program = (
        "import http.server, json, urllib.parse\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        at = urllib.parse.urlsplit(self.path); q = urllib.parse.parse_qs(at.query)['q'][0]\n"
        "        self.send_response(200); self.end_headers()\n"
        "        self.wfile.write(json.dumps({'results': [{'title': f'{q} at {at.path}', "
        "'url': 'http://a.test/'}]}).encode())\n"
        "    def log_message(self, *_): pass\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), H)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_an_engine_is_asked_where_the_searxng_fails(world: World, audit: Path) -> None:
    web = {"searxng": SEARXNG, "engines": ["duckduckgo"]}
    trust = {"intercept": ["html.duckduckgo.com"], "trust": world.folder / "ca.pem"}
    with searching(audit, web, **trust) as sandbox:
        hits = sandbox.web.search("broken")
        assert hits == [SearchHit("Rivers of broken", "https://rivers.test/", "All about broken", "duckduckgo")]
        before = len([visit for visit in world.visits() if f" {SEARCH} " in visit])
        assert sandbox.web.search("again")[0].engine == "duckduckgo"  # it is left alone for a while
        assert len([visit for visit in world.visits() if f" {SEARCH} " in visit]) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [("broken", "JSON search results"), ("500", "answered 500"), ("forbidden", "search.formats"), ("silent", "10 s")],
)
def test_what_every_engine_said_is_told_when_all_fail(world: World, audit: Path, words: str, said: str) -> None:
    with searching(audit, {"searxng": SEARXNG, "engines": ["mojeek", "brave"]}) as sandbox:
        with pytest.raises(WebUnavailable) as failed:
            sandbox.web.search(words)
        assert failed.value.reason == "search"
        for name in ("searxng", "mojeek", "brave", said):
            assert name in failed.value.message
        assert len(sandbox.web.search("other words")) == 10  # what one search did is not the end of others
        assert sandbox.stats().running == 0


def test_engines_that_failed_are_left_alone_for_a_while(world: World, audit: Path) -> None:
    with searching(audit, {"engines": ["mojeek", "brave"]}) as sandbox:
        for said in ("no engine has answered", "failed lately"):
            with pytest.raises(WebUnavailable, match=said) as failed:
                sandbox.web.search("rivers")
            assert "mojeek: " in failed.value.message
            assert "brave: " in failed.value.message


def test_each_search_begins_with_another_engine_and_a_pause_grows_with_each_failure() -> None:
    now = [0.0]
    engines = Engines({"searxng": None, "engines": ["brave", "mojeek", "yahoo"]}, lambda: now[0])
    assert [engines.order()[0] for _ in range(4)] == ["brave", "mojeek", "yahoo", "brave"]
    for pause in (30, 60, 120):
        engines.note({"brave": "blocked"}, ["mojeek"])
        now[0] += pause - 1
        assert "brave" not in engines.order()
        now[0] += 1
        assert "brave" in engines.order()
    engines.note({}, ["brave"])
    assert engines.reasons() == ""


def test_hits_that_lead_nowhere_on_the_web_are_left_out(world: World, audit: Path) -> None:
    with searching(audit, {"searxng": SEARXNG}) as sandbox:
        assert sandbox.web.search("hostile") == [SearchHit("['x']", "https://ok.test/", "", "None")]


def test_without_the_section_search_is_off_and_says_how_to_turn_it_on(audit: Path) -> None:
    with sync.Sandbox(audit=audit) as sandbox, pytest.raises(Unavailable, match='"searxng"'):
        sandbox.web.search("rivers")


@pytest.mark.parametrize(
    "arguments",
    [{"query": ""}, {"query": " "}, {"query": "x" * 1001}, {"query": None}, {"limit": 0}, {"limit": 101},
     {"limit": True}],
)  # fmt: skip
def test_a_search_that_cannot_be_meant_is_refused(audit: Path, arguments: dict[str, Any]) -> None:
    with searching(audit, {"searxng": SEARXNG}) as sandbox, pytest.raises(InvalidArgument):
        sandbox.web.search(**{"query": "rivers", **arguments})


@pytest.mark.parametrize(
    ("web", "said"),
    [({}, "needs"), ({"searxng": "ftp://x.test"}, "web.searxng"), ({"searxng": "http://u:p@x.test"}, "web.searxng"),
     ({"searxng": "http://x.test/?a=b"}, "web.searxng"), ({"engines": ["google"]}, "web.engines"),
     ({"engine": ["brave"]}, "engines"), ({"engines": []}, "needs")],
)  # fmt: skip
def test_a_section_that_cannot_be_meant_is_refused_with_its_place(audit: Path, web: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        searching(audit, web)
