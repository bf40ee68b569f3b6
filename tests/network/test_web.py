"""Pages are fetched only through the cell's network and within bounds, and failures are reported by their kind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.test_private import meaning
from tests.network.visits import World
from tests.network.web_site import PORT, SEARCH

from casemate import ApprovalRequest, Decision, Denied, InvalidArgument, Limits, Unavailable, WebUnavailable, sync
from casemate.audit.log import AuditLog

SITE = f"http://good.test:{PORT}"
DOMAINS = [f"good.test:{PORT}", "good.test", "good.test:1"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    """One that may reach good.test."""
    with sync.Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db", allowed_domains=DOMAINS) as made:
        yield made


def running(sandbox: sync.Sandbox) -> int:
    return sandbox.stats().running


def test_an_article_comes_as_markdown_with_its_title_links_and_table(reader: sync.Sandbox, world: World) -> None:
    page = reader.web.fetch(f"{SITE}/page#part")
    assert (page.url, page.final_url, page.status) == (f"{SITE}/page#part", f"{SITE}/page", 200)
    assert (page.media_type, page.title, page.from_cache, page.truncated) == ("text/html", "Rivers", False, False)
    assert "## Delta" in page.text
    assert "    return rate * 2" in page.text
    assert "| Elbe | 1094 |" in page.text
    assert f"[more of it]({SITE}/more?a=1)" in page.text
    assert [(one.text, one.url) for one in page.links] == [("more of it", f"{SITE}/more?a=1")]
    assert "Menu entry" not in page.text
    assert "script text" not in page.text


def test_the_whole_page_has_its_menu_too(reader: sync.Sandbox) -> None:
    page = reader.web.fetch(f"{SITE}/page", whole=True)
    assert "Menu entry" in page.text
    assert "## Delta" in page.text
    assert "script text" not in page.text


def test_robots_txt_is_told_and_asked_by_the_same_connection(reader: sync.Sandbox, world: World) -> None:
    assert reader.web.fetch(f"{SITE}/page").robots == "allowed"
    assert reader.web.fetch(f"{SITE}/private/page").robots == "disallowed"
    assert reader.web.fetch(f"{SITE}/close").robots == "unknown"


def test_a_page_that_is_missing_is_a_page_with_its_status(reader: sync.Sandbox) -> None:
    page = reader.web.fetch(f"{SITE}/missing")
    assert page.status == 404
    assert "no such page" in page.text


@pytest.mark.parametrize("path", ["/etag", "/modified"])
def test_what_has_not_changed_is_asked_for_once_more_and_not_sent_again(reader: sync.Sandbox, path: str) -> None:
    first, second = reader.web.fetch(SITE + path), reader.web.fetch(SITE + path)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert (first.text, first.title, first.links) == (second.text, second.title, second.links)


def test_a_server_that_says_unchanged_of_what_nobody_has_gives_no_page(reader: sync.Sandbox) -> None:
    with pytest.raises(WebUnavailable) as failed:
        reader.web.fetch(f"{SITE}/liar")
    assert failed.value.reason == "unreadable"


def test_cookies_are_neither_kept_nor_sent(reader: sync.Sandbox) -> None:
    said = json.loads(reader.web.fetch(f"{SITE}/cookie").text)
    assert "cookie" not in said
    assert said["host"] == f"good.test:{PORT}"


@pytest.mark.parametrize("name", ["gzip", "x-gzip", "deflate", "raw"])
def test_pages_come_without_the_encodings_that_were_asked_for(reader: sync.Sandbox, name: str) -> None:
    assert "## Delta" in reader.web.fetch(f"{SITE}/encoded?{name}").text


@pytest.mark.parametrize("name", ["iso-8859-1", "windows-1251", "utf-16", "gb18030", "shift_jis", "koi8-r"])
def test_charsets_that_are_named_are_read(reader: sync.Sandbox, name: str) -> None:
    expected = "Käse €".encode(name, "replace").decode(name)
    assert reader.web.fetch(f"{SITE}/charset?{name}").text == expected


@pytest.mark.parametrize("name", ["nonsense", "zlib", "rot13", "ascii", "utf-16", "\u00e4"])
def test_what_a_charset_cannot_read_is_read_as_something_that_can(reader: sync.Sandbox, name: str) -> None:
    text = reader.web.fetch(f"{SITE}/wrong-charset?{name}").text
    assert text.startswith("K") or name in ("utf-16", "ascii")
    assert text


def test_a_charset_that_the_page_names_is_read(reader: sync.Sandbox) -> None:
    page = reader.web.fetch(f"{SITE}/meta")
    assert (page.title, page.text) == ("Käse", "Käse")


def test_pdfs_json_and_text_have_their_text(reader: sync.Sandbox) -> None:
    page = reader.web.fetch(f"{SITE}/pdf")
    assert (page.media_type, page.title, page.text) == (
        "application/pdf",
        "Paper",
        "First page words\n\nSecond page words",
    )
    assert json.loads(reader.web.fetch(f"{SITE}/json").text) == {"rivers": ["Elbe"]}
    assert reader.web.fetch(f"{SITE}/typeless?text").text == "plain words"
    assert reader.web.fetch(f"{SITE}/typeless?pdf").text == "bare"
    assert "## Delta" in reader.web.fetch(f"{SITE}/typeless?html").text


def test_a_page_that_is_nested_without_end_is_read_or_refused(reader: sync.Sandbox) -> None:
    try:
        text = reader.web.fetch(f"{SITE}/deep").text
    except WebUnavailable as failed:
        text = failed.reason
    assert text in ("deep", "unreadable")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/type?image/png", "wrong_type"),
        ("/type?application/octet-stream", "wrong_type"),
        ("/typeless?", "wrong_type"),
        ("/bad-pdf", "unreadable"),
        ("/bomb", "too_large"),
        ("/long", "too_large"),
        ("/endless", "too_large"),
        ("/endless-head", "protocol"),
        ("/short", "protocol"),
        ("/nonsense", "protocol"),
        ("/encoded?br", "encoding"),
        ("/encoded?lie", "encoding"),
        ("/encoded?cut", "encoding"),
        ("/encoded?gzip, gzip", "encoding"),
        ("/loop", "redirects"),
        ("/redirect?ftp://good.test/", "url"),
        ("/redirect?http://somebody:secret@good.test/", "url"),
        ("/redirect?file:///etc/passwd", "url"),
        ("/redirect?http://good.test:99999999/", "url"),
        ("/redirect?https://good.test/", "tls"),
        ("http://good.test:1/", "connect"),
    ],
)
def test_what_keeps_a_page_away_is_told_by_its_kind(reader: sync.Sandbox, path: str, reason: str) -> None:
    url = SITE + path.replace(" ", "%20") if path.startswith("/") else path
    with pytest.raises(WebUnavailable) as failed:
        reader.web.fetch(url)
    assert failed.value.reason == reason
    assert "good.test" in str(failed.value)
    assert running(reader) == 0


@pytest.mark.parametrize("path", ["/silent", "/slow"])
def test_a_server_that_does_not_finish_is_left_when_the_time_is_over(reader: sync.Sandbox, path: str) -> None:
    with pytest.raises(WebUnavailable) as failed:
        reader.web.fetch(SITE + path, timeout=2)
    assert failed.value.reason == "timeout"
    assert running(reader) == 0


@pytest.mark.parametrize(
    "url",
    ["ftp://good.test/", "file:///etc/passwd", "data:text/html,x", "good.test/page", "http://", "http:///page", "",
     "http://user:secret@good.test/", "http://user@good.test/", "http://good.test:99999/", "http://good.test/a b",
     "http://good.test/\n", "http://[::1/", "https://good.test/" + "a" * 9000, None, 5],
)  # fmt: skip
def test_an_address_that_cannot_be_meant_is_refused_before_anything_starts(
    reader: sync.Sandbox, world: World, url: Any
) -> None:
    visits = world.visits()
    for call in (reader.web.fetch, reader.web.browse):
        with pytest.raises(InvalidArgument) as refused:
            call(url)
        assert refused.value.argument == "url"
        assert "secret" not in str(refused.value)
    assert world.visits() == visits


@pytest.mark.parametrize(
    "target",
    ["http://private.test/x", "http://metadata.test/latest", "http://loopback.test/x", "http://own.test/x",
     "http://10.77.0.1/x", "http://169.254.169.254/latest", "http://127.0.0.1/", "http://[::1]/", "http://2852039166/",
     "http://0x7f.1/", "http://localhost/", "http://evil.test/x", "http://host.casemate.internal:8091/"],
)  # fmt: skip
def test_no_redirect_leads_where_the_address_itself_would_not(reader: sync.Sandbox, world: World, target: str) -> None:
    reached = {visit.split()[0] for visit in world.visits()}
    for url in (target, f"{SITE}/redirect?{target}"):
        with pytest.raises((Denied, InvalidArgument)) as refused:
            reader.web.fetch(url)
        assert target.split("/")[2].partition(":")[0].strip("[]") in str(refused.value)
    assert {visit.split()[0] for visit in world.visits()} <= reached | {"93.184.216.34"}
    assert running(reader) == 0


def test_a_redirect_that_somebody_may_allow_is_asked_about_and_nothing_private_is_reached(
    world: World, audit: Path
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append((request.kind, dict(request.arguments)))
        return bool(request.arguments["host"] != "evil.test")

    with sync.Sandbox(audit=audit, allowed_domains=[f"good.test:{PORT}"], approve=approve) as sandbox:
        page = sandbox.web.fetch(f"{SITE}/redirect?http://other.test:{PORT}/page")
        assert (page.final_url, page.robots) == (f"http://other.test:{PORT}/page", "allowed")
        assert asked == [("egress", {"host": "other.test", "port": PORT})]
        with pytest.raises(Denied, match=r"evil\.test"):
            sandbox.web.fetch(f"{SITE}/redirect?http://evil.test/x")
        for name in ("private.test", "metadata.test"):
            visits = world.visits()
            with pytest.raises((Denied, WebUnavailable), match=name):
                sandbox.web.fetch(f"{SITE}/redirect?http://{name}/x")
            assert [visit for visit in world.visits()[len(visits) :] if " 80 " in visit] == []


def test_the_clock_of_a_page_stands_while_somebody_is_asked(world: World, audit: Path) -> None:
    answer = threading.Event()

    def approve(_request: ApprovalRequest) -> Decision:
        threading.Timer(6, answer.set).start()
        answer.wait(60)
        return Decision(True)

    with sync.Sandbox(audit=audit, approve=approve) as sandbox:
        assert sandbox.web.fetch(f"{SITE}/page", timeout=5).status == 200


def test_without_a_network_nothing_is_fetched(audit: Path) -> None:
    with sync.Sandbox(audit=audit, network="none") as sandbox, pytest.raises(Denied, match="network='none'"):
        sandbox.web.fetch(f"{SITE}/page")


def test_a_private_host_that_a_rule_names_is_fetched_at_its_address_alone(world: World, audit: Path) -> None:
    rules = [{"allow": "egress", "host": f"private.test:{PORT}", "addresses": ["10.77.0.0/16"]}]
    with sync.Sandbox(audit=audit, policy={"rules": rules}) as sandbox:
        assert sandbox.web.fetch(f"http://private.test:{PORT}/page").title == "Rivers"
        with meaning(world, "private.test", "10.77.0.1", "192.168.77.1"), pytest.raises((Denied, WebUnavailable)):
            sandbox.web.fetch(f"http://private.test:{PORT}/page")


def test_https_is_fetched_where_tls_ends_at_the_egress_proxy_too(world: World, audit: Path) -> None:
    names = ["good.test"]
    with sync.Sandbox(audit=audit, allowed_domains=names, intercept=names, trust=world.folder / "ca.pem") as sandbox:
        assert sandbox.web.fetch("https://good.test/x").text == "hello from GET /x"


def test_what_was_fetched_is_on_record_with_its_address_and_the_hosts(world: World, audit: Path) -> None:
    with sync.Sandbox(audit=audit, allowed_domains=DOMAINS) as sandbox:
        sandbox.web.fetch(f"{SITE}/page")
    log = AuditLog(audit)
    rows = [(row.kind, json.loads(row.detail)) for row in log.tail(100)]
    log.close()
    intents = [detail["metadata"] for kind, detail in rows if kind == "intent"]
    assert intents == [{"web": "fetch", "url": f"{SITE}/page"}]
    assert any(kind == "crossing" and detail["host"] == "good.test" for kind, detail in rows)


def test_programs_environment_and_folder_have_no_part_in_a_page(world: World, audit: Path, tmp_path: Path) -> None:
    (tmp_path / "trafilatura.py").write_text("raise SystemExit('the folder was read')")
    with sync.Sandbox(audit=audit, allowed_domains=DOMAINS, environment="/usr/bin/python3", workspace=tmp_path,
                      workspace_mode="direct") as sandbox:  # fmt: skip
        assert sandbox.web.fetch(f"{SITE}/page").title == "Rivers"
    assert [one.name for one in tmp_path.iterdir()] == ["trafilatura.py"]


def test_a_missing_package_is_named_with_what_installs_it(
    reader: sync.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casemate.web import cells

    monkeypatch.setattr(cells, "PARSERS", ("no_such_module",))
    monkeypatch.setattr("casemate.web.web.PARSERS", ("no_such_module",))
    with pytest.raises(Unavailable, match=r"\[web\]"):
        reader.web.fetch(f"{SITE}/page")


IN_A_CELL = """
from mcptools import ToolError
from mcptools.web import fetch

page = fetch.run(url="{site}/page").result
print(page["title"], page["status"])
try:
    fetch.run(url="http://evil.test/")
except ToolError as error:
    print(error.kind, "evil.test" in str(error))
"""


def test_code_in_a_cell_fetches_under_the_same_rules_also_where_one_cell_may_run(tmp_path: Path) -> None:
    policy = {"web": {"engines": ["duckduckgo"]}, "allowed_domains": DOMAINS}
    with sync.Sandbox(audit=tmp_path / "audit.db", policy=policy, concurrency=1) as sandbox:
        execution = sandbox.run(IN_A_CELL.format(site=SITE), timeout=60)
    assert execution.stdout == "Rivers 200\ntool True\n", execution


def test_the_usual_time_of_a_page_is_no_more_than_the_sandbox_has(audit: Path) -> None:
    with sync.Sandbox(audit=audit, allowed_domains=DOMAINS, limits=Limits(wall=20)) as sandbox:
        assert sandbox.web.fetch(f"{SITE}/page").title == "Rivers"
        with pytest.raises(InvalidArgument, match=r"25 s is beyond limits\.wall, 20 s"):
            sandbox.web.fetch(f"{SITE}/page", timeout=25)


BEYOND_ITS_OWN = """
from mcptools import ToolError
from mcptools.web import browse, fetch, search

calls = ((fetch, {{"url": "{site}/page"}}), (browse, {{"url": "http://good.test/x"}}), (search, {{"query": "x"}}))
for do, given in calls:
    try:
        print("reached", do.run(**given).result)
    except ToolError as error:
        print("refused", "other.test" in str(error) or "good.test" in str(error) or "allowed_domains" in str(error))
"""


@pytest.mark.needs("browser")
@pytest.mark.parametrize("surface", ["run", "session"])
def test_code_with_fewer_hosts_than_its_sandbox_reaches_no_more_through_the_web(
    world: World, tmp_path: Path, surface: str
) -> None:
    policy = {"web": {"searxng": f"http://other.test:{SEARCH}"}, "allowed_domains": [*DOMAINS, "evil.test"]}
    code = BEYOND_ITS_OWN.format(site=SITE)
    with sync.Sandbox(audit=tmp_path / "audit.db", policy=policy) as sandbox:
        sandbox.web.browse("http://good.test/x")  # its browser is there, and has all hosts
        visits = world.visits()
        if surface == "run":
            execution = sandbox.run(code, allowed_domains=["evil.test"], timeout=60)
        else:
            with sandbox.session(allowed_domains=["evil.test"]) as session:
                execution = session.run(code, timeout=60)
        assert execution.stdout == "refused True\n" * 3, execution
        assert [visit for visit in world.visits()[len(visits) :] if "GET" in visit] == []
        assert sandbox.web.fetch(f"{SITE}/page").status == 200


def test_a_search_by_code_asks_the_engines_that_its_own_hosts_name(world: World, tmp_path: Path) -> None:
    place = f"other.test:{SEARCH}"
    policy = {"web": {"searxng": f"http://{place}"}, "allowed_domains": [*DOMAINS, place]}
    code = "from mcptools.web import search\nprint(len(search.run(query='rivers', limit=3).result))"
    with sync.Sandbox(audit=tmp_path / "audit.db", policy=policy) as sandbox:
        assert sandbox.run(code, allowed_domains=[place], timeout=60).stdout == "3\n"
