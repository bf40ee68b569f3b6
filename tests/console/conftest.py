"""What the tests of the console share: a service, clients that speak to it as browsers do, and a real browser."""

from __future__ import annotations

import http.client
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.console.browser import Chromium, Page, chromium, signed_in
from tests.coroutines import pytest_pyfunc_call
from tests.service.daemon import ASKS, Daemon, environment, serving, unix
from tests.service.daemon import http as raw_http
from tests.support.waiting import MAX_WAIT

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A service whose policy asks about commands of sessions."""
    folder = Path(tempfile.mkdtemp(prefix="casemate-console-"))
    policy = folder / "policy.json"
    policy.write_text(ASKS)
    try:
        with serving({**environment(folder), "CASEMATE_POLICY": str(policy)}) as one:
            yield one
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Answer:
    """``headers`` by name in lower case."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        self.body = answer.read()

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Sends what a browser would send that shows the console at ``link``."""

    def __init__(self, link: str) -> None:
        self.host, _, self.code = link.removeprefix("http://").partition("/console/#code=")
        self.origin = f"http://{self.host}"
        self.cookie = self.key = ""

    def ask(self, method: str, path: str, value: Any = None, **headers: str | None) -> Answer:
        """One request; ``headers`` instead of what the page would send, None for none."""
        given = {
            "Origin": None if method == "GET" else self.origin,
            "Cookie": self.cookie,
            "Casemate-Console": self.key,
        }
        named = {**given, **{name.replace("_", "-"): one for name, one in headers.items()}}
        connection = http.client.HTTPConnection(self.host, timeout=MAX_WAIT)
        try:
            body = None if value is None else json.dumps(value)
            connection.request(method, path, body, {name: one for name, one in named.items() if one})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def sign_in(self, **headers: str | None) -> Answer:
        """Exchange the link's code."""
        answer = self.ask("POST", "/console/session", {"code": self.code}, **{"Casemate_Console": "new", **headers})
        if answer.status == 200:
            self.cookie, self.key = answer.headers["set-cookie"].partition(";")[0], answer.value["key"]
        return answer


def link_of(daemon: Daemon) -> str:
    """What ``casemate console --print`` prints, without the time that a command takes."""
    with unix(daemon) as connection:
        _, _, body = raw_http(connection, "POST /v1/service/console HTTP/1.1\nHost: localhost", b"{}")
    made = json.loads(body)
    return f"{made['url']}{made['path']}"


@pytest.fixture
def browser(daemon: Daemon) -> Browser:
    """One that has a link, and has not signed in."""
    return Browser(link_of(daemon))


@pytest.fixture(scope="module")
def real_browser() -> Iterator[Chromium]:
    """One for the tests of a file; each has a profile of its own."""
    with chromium() as one:
        yield one


def call(daemon: Daemon, operation: str, **arguments: Any) -> Any:
    """The answer to an operation, as the user's own commands ask for it."""
    with unix(daemon) as connection:
        head = f"POST /v1/{operation.replace('.', '/')} HTTP/1.1\nHost: localhost\nContent-Type: application/json"
        status, _, body = raw_http(connection, head, json.dumps(arguments).encode())
    assert status == 200, body
    return json.loads(body)


@pytest.fixture
def page(real_browser: Chromium, daemon: Daemon) -> Iterator[Page]:
    """The console, signed in. What fails in it fails the test."""
    try:
        with signed_in(real_browser, link_of(daemon)) as one:
            yield one
    finally:
        call(daemon, "approvals.deny_all")  # what a failed test leaves would fail those after it
