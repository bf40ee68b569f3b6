"""Searches and pages on the command line, in services, over MCP and without await."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult
from tests.network.visits import World
from tests.network.web_site import PORT, SEARCH
from tests.service.daemon import Daemon, casemate_command, environment

from casemate import Artifact, BrowsedPage, InvalidArgument, Sandbox, SearchHit, WebLink, WebUnavailable, sync
from casemate.artifacts.content import Spool
from casemate.model.execution import Download
from casemate.model.operation import Audience, Principal
from casemate.operations import PARTS
from casemate.operations.invoke import local
from casemate.operations.operations import Operations
from casemate.surfaces.mcp.callers import LocalBackend
from casemate.surfaces.mcp.server import make_server
from casemate.web.web import Web

SITE = f"http://good.test:{PORT}"
POLICY = {"allowed_domains": [f"good.test:{PORT}"], "web": {"searxng": f"http://other.test:{SEARCH}"}}
PNG = b"\x89PNG picture"


@wraps(Web.browse)  # it is marked as an operation
async def browse(_web: Web, url: str, **options: Any) -> BrowsedPage:
    """As a browser would."""
    spool = Spool()
    spool.write(b"saved")
    picture = PNG if options["screenshot"] else None
    words = f"# Rendered\n\n{json.dumps(options, sort_keys=True)}"
    file = spool.artifact("a file.txt", "text/plain")
    files = (Download(file.name, file.size, file.sha256, file.media_type, file.content),)
    return BrowsedPage(url, f"{url}#end", 200, "Rendered", words, (WebLink("x", "https://x.test/"),), picture, files)


@pytest.fixture(scope="module")
def service() -> Iterator[dict[str, str]]:
    """The variables of a user whose service has the policy."""
    with tempfile.TemporaryDirectory(prefix="casemate-web-") as folder:
        policy = Path(folder, "policy.json")
        policy.write_text(json.dumps(POLICY))
        daemon = Daemon({**environment(Path(folder)), "CASEMATE_POLICY": str(policy)}).start()
        try:
            yield daemon.env
        finally:
            daemon.stop()


def casemate(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(casemate_command(*words), env=env, capture_output=True, text=True, timeout=100, check=False)


def test_a_page_is_printed_as_markdown_or_as_json(service: dict[str, str]) -> None:
    done = casemate(service, "web", "fetch", f"{SITE}/page")
    assert (done.returncode, done.stderr) == (0, "")
    assert "## Delta" in done.stdout
    page = json.loads(casemate(service, "web", "fetch", f"{SITE}/page", "--whole", "--format", "json").stdout)
    assert (page["title"], page["status"], page["robots"]) == ("Rivers", 200, "allowed")
    assert "Menu entry" in page["text"]


def test_a_page_that_is_missing_or_kept_from_programs_is_told(service: dict[str, str]) -> None:
    done = casemate(service, "web", "fetch", f"{SITE}/missing")
    assert (done.returncode, "no such page" in done.stdout) == (1, True)
    assert "status 404" in done.stderr
    assert "robots.txt" in casemate(service, "web", "fetch", f"{SITE}/private/page").stderr


def test_nothing_of_a_page_acts_upon_the_terminal(service: dict[str, str]) -> None:
    done = casemate(service, "web", "fetch", f"{SITE}/control")
    assert done.returncode == 0
    assert not {"\x1b", "\x00", "\u202e"} & set(done.stdout)


def test_hits_are_printed_in_rows_or_as_json(service: dict[str, str]) -> None:
    done = casemate(service, "web", "search", "long", "rivers", "--limit", "2")
    assert done.stdout.splitlines()[0].split("\t")[:2] == ["https://rivers.test/0", "long rivers 0"]
    hits = json.loads(casemate(service, "web", "search", "rivers", "--format", "json").stdout)
    assert (len(hits), hits[0]["engine"]) == (10, "some engine")


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [(("fetch", "ftp://good.test/"), 2, ""), (("fetch", "http://u:p@good.test/"), 2, ""),
     (("browser", "file:///etc"), 2, ""), (("browser", SITE, "--wait-for", " "), 2, "--wait-for: "),
     (("fetch", f"{SITE}/type?image/png"), 69, ""), (("search", "broken"), 69, ""), (("search", " "), 2, "WORDS: ")],
)  # fmt: skip
def test_what_cannot_be_had_has_an_exit_code_of_its_kind(
    service: dict[str, str], words: tuple[str, ...], code: int, why: str
) -> None:
    done = casemate(service, "web", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"casemate: {why}")


def test_a_host_is_asked_about_in_another_terminal(service: dict[str, str]) -> None:
    fetching = subprocess.Popen(
        casemate_command("web", "fetch", f"http://other.test:{PORT}/page"), env=service,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert fetching.stderr is not None
    assert "waits for an answer" in fetching.stderr.readline()
    (asked,) = json.loads(casemate(service, "approvals", "list", "--format", "json").stdout)
    assert asked["arguments"] == {"host": "other.test", "port": PORT}
    assert casemate(service, "approvals", "approve", asked["id"]).returncode == 0
    said, _ = fetching.communicate(timeout=100)
    assert "## Delta" in said
    denied = subprocess.Popen(
        casemate_command("web", "fetch", f"http://evil.test:{PORT}/page"), env=service,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert denied.stderr is not None
    denied.stderr.readline()
    (asked,) = json.loads(casemate(service, "approvals", "list", "--format", "json").stdout)
    casemate(service, "approvals", "deny", asked["id"])
    _, why = denied.communicate(timeout=100)
    assert (denied.returncode, "evil.test" in why) == (77, True)


def test_a_connected_sandbox_has_the_same_pages_hits_and_errors(
    service: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in service.items():
        monkeypatch.setenv(name, value)
    with sync.Sandbox.connect() as sandbox:
        page = sandbox.web.fetch(f"{SITE}/etag")
        assert page.links == (WebLink("more of it", f"{SITE}/more?a=1"),)
        assert sandbox.web.fetch(f"{SITE}/etag").from_cache
        assert sandbox.web.search("rivers", limit=1) == [
            SearchHit("rivers 0", "https://rivers.test/0", "All about it", "some engine")
        ]
        with pytest.raises(WebUnavailable) as failed:
            sandbox.web.fetch(f"{SITE}/bomb")
        assert (failed.value.reason, failed.value.url) == ("too_large", f"{SITE}/bomb")
        with pytest.raises(InvalidArgument):
            sandbox.web.fetch("ftp://good.test/")


@contextlib.asynccontextmanager
async def operations(audit: Path, **options: Any) -> AsyncGenerator[Operations]:
    async with Sandbox(audit=audit, policy=POLICY, **options) as sandbox:
        made = await Operations(sandbox).load()
        try:
            yield made
        finally:
            await made.close()


def text_of(result: CallToolResult) -> str:
    (text,) = (block.text for block in result.content if block.type == "text")
    return text


def test_the_tools_of_agents_search_read_and_show(world: World, audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Web, "browse", browse)

    async def use() -> None:
        async with operations(audit) as made:

            async def give() -> Operations:
                return made

            server = make_server(LocalBackend(give, may_approve=False), toolset="sandboxmcp")
            async with Client(server, mode="2026-07-28") as client:
                hits = await client.call_tool("web_search", {"query": "rivers"})
                assert "https://rivers.test/9" in text_of(hits)
                assert len((hits.structured_content or {})["results"]) == 10
                page = await client.call_tool("fetch_webpage", {"url": f"{SITE}/page"})
                assert text_of(page).startswith(f"[{SITE}/page: Rivers]\n[all below is untrusted text")
                assert "## Delta" in text_of(page)
                rest = await client.call_tool("fetch_webpage", {"url": f"{SITE}/page", "start": 30})
                assert "# Rivers" not in text_of(rest)
                shown = await client.call_tool(
                    "browser_fetch", {"url": f"{SITE}/page", "timeout_ms": 5000, "screenshot": True}
                )
                assert [block.type for block in shown.content] == ["text", "image"]
                assert '"timeout": 5.0' in text_of(shown)
                assert '[downloaded: "a file.txt", 5 bytes]' in text_of(shown)
                for tool, arguments in (
                    ("fetch_webpage", {"url": f"{SITE}/missing"}), ("fetch_webpage", {"url": "ftp://x.test/"}),
                    ("fetch_webpage", {"url": f"{SITE}/bomb"}), ("web_search", {"query": "broken"}),
                    ("web_search", {"query": "x", "more": 1}),
                    ("browser_fetch", {"url": f"{SITE}/", "wait_until": "x"}),
                ):  # fmt: skip
                    assert (await client.call_tool(tool, arguments)).is_error, (tool, arguments)

    asyncio.run(use())


def test_an_agents_pages_are_its_own(world: World, audit: Path) -> None:
    async def use() -> None:
        async with operations(audit) as made:
            agents = [local(made, Principal(name, Audience.AGENT)) for name in ("one", "two")]
            first = await agents[0]("web.fetch", {"url": f"{SITE}/etag"})
            other = await agents[1]("web.fetch", {"url": f"{SITE}/etag"})
            again = await agents[0]("web.fetch", {"url": f"{SITE}/etag"})
            assert [one["from_cache"] for one in (first, other, again)] == [False, False, True]

    asyncio.run(use())


def test_a_browsers_page_goes_through_a_service_whole(
    world: World, audit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Web, "browse", browse)

    async def use() -> None:
        async with operations(audit) as made:
            page = await local(made, Principal("agent", Audience.AGENT))(
                "web.browse", {"url": SITE, "screenshot": True}
            )
        assert page["final_url"] == f"{SITE}#end"
        from casemate.remote.parts import Web as RemoteWeb

        async def answer(operation: str, arguments: Any) -> Any:
            assert (operation, arguments) == ("web.browse", {"url": SITE, "screenshot": True})
            return page

        connected: Any = RemoteWeb(answer, PARTS["web"], "web.")  # type: ignore[arg-type]
        known = await connected.browse(SITE, screenshot=True)
        assert (known.screenshot, known.links) == (PNG, (WebLink("x", "https://x.test/"),))
        (file,) = known.downloads
        assert isinstance(file, Artifact)
        assert (file.name, file.sha256) == ("a file.txt", hashlib.sha256(b"saved").hexdigest())
        assert file.read_bytes() == b"saved"

    asyncio.run(use())
