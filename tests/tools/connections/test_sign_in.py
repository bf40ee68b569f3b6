"""Signing in to remote servers, against an authorization server of the tests' own and a scripted browser."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.tools.connections.authorization import DEVICE, Guarded
from tests.tools.connections.conftest import SECONDS, Made, Secrets, said
from tests.tools.connections.web import serving

from casemate.errors import CasemateError, InvalidArgument, ToolUnavailable, Unavailable
from casemate.tools.connections.browser import show_sign_in
from casemate.tools.connections.context import SignInPrompt
from casemate.tools.connections.oauth import secret_name


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    app = Guarded()
    with serving(app) as url:
        app.url = url
        yield app


class Browser:
    """A person at a browser, who signs in wherever they are led. ``seen``: the prompts, and what the pages said."""

    def __init__(self) -> None:
        self.prompts: list[SignInPrompt] = []
        self.pages: list[str] = []

    def __call__(self, prompt: SignInPrompt) -> None:
        self.prompts.append(prompt)
        if not prompt.code:
            with httpx2.Client(follow_redirects=True, trust_env=False, timeout=SECONDS) as client:
                self.pages.append(client.get(prompt.url).text)


def nobody(prompt: SignInPrompt) -> None:
    raise Unavailable(f"nobody is there to sign in for {prompt.server}")


def test_a_user_signs_in_once_in_the_browser(connections: Made, guarded: Guarded, secrets: Secrets) -> None:
    browser = Browser()
    servers = connections(on_sign_in=browser)
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": "oauth"})
    assert said(servers, "echo", a=1) == '{"a": 1}'
    assert guarded.log == ["register", "authorization_code"]
    assert guarded.pages[0]["resource"] == f"{guarded.url}/mcp"
    assert [prompt.server for prompt in browser.prompts] == ["own"]
    assert "You are signed in" in browser.pages[0]
    servers.close()
    kept = secrets.values[secret_name("own")]
    assert guarded.tokens <= set(json.loads(kept)["tokens"].values())

    again = connections(on_sign_in=nobody)
    again.add("own", {"url": f"{guarded.url}/mcp", "auth": "oauth"})
    assert said(again, "echo") == "{}"
    assert guarded.log == ["register", "authorization_code"]
    again.close()


def test_a_token_that_has_expired_is_renewed_without_the_user(
    connections: Made, guarded: Guarded, secrets: Secrets
) -> None:
    browser = Browser()
    servers = connections(on_sign_in=browser)
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": "oauth"})
    assert said(servers, "echo") == "{}"
    servers.close()
    guarded.tokens.clear()
    name = secret_name("own")
    secrets.values[name] = json.dumps({**json.loads(secrets.values[name]), "expires_at": 1.0})
    again = connections(on_sign_in=nobody)
    again.add("own", {"url": f"{guarded.url}/mcp", "auth": "oauth"})
    assert said(again, "echo") == "{}"
    assert guarded.log[-1] == "refresh_token"
    assert len(browser.prompts) == 1
    again.close()


def test_tokens_of_one_address_are_not_sent_to_another(connections: Made, guarded: Guarded, secrets: Secrets) -> None:
    servers = connections(on_sign_in=Browser())
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": "oauth"})
    assert said(servers, "echo") == "{}"
    servers.close()
    other = Guarded()
    with serving(other) as url:
        other.url = url
        again = connections(on_sign_in=nobody)
        again.add("own", {"url": f"{url}/mcp", "auth": "oauth"})
        with pytest.raises(Unavailable, match="nobody is there"):
            again.tools("own").result(SECONDS)
        again.close()
    assert set(other.given) == {""}


def test_where_nothing_can_be_kept_a_sign_in_is_for_this_process(
    connections: Made, guarded: Guarded, secrets: Secrets
) -> None:
    secrets.is_read_only = True
    servers = connections(on_sign_in=Browser())
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": "oauth"})
    assert said(servers, "echo") == "{}"
    assert secret_name("own") not in secrets.values
    servers.close()


def test_a_user_signs_in_on_another_device(connections: Made, guarded: Guarded) -> None:
    browser = Browser()
    servers = connections(on_sign_in=browser)
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": {"type": "device"}})
    assert said(servers, "echo") == "{}"
    assert browser.prompts == [SignInPrompt("own", f"{guarded.url}/enter", "WDJB-MJHT")]
    assert guarded.log == ["register", DEVICE, DEVICE, DEVICE]
    servers.close()


def test_the_address_and_the_code_are_shown_at_the_terminal_and_nowhere_else(
    connections: Made, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, terminal = os.openpty()
    servers = connections()
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": {"type": "device"}})
    with os.fdopen(screen, "rb", 0) as screen_file, os.fdopen(terminal, "w") as terminal_file:
        with monkeypatch.context() as patch, open(os.devnull, "w") as nowhere:
            patch.setattr(sys, "stderr", nowhere)
            with pytest.raises(CasemateError, match="casemate tools search") as failure:
                servers.tools("own").result(SECONDS)
        assert "WDJB" not in str(failure.value)
        monkeypatch.setattr(sys, "stderr", terminal_file)
        assert said(servers, "echo") == "{}"
        assert f"open {guarded.url}/enter, and enter the code WDJB-MJHT\r\n" in screen_file.read(4096).decode()
    servers.close()


@pytest.mark.parametrize("code", ["a code", "\x1b[2J", "A" * 65])
def test_a_code_that_could_spoil_the_terminal_is_not_shown(connections: Made, guarded: Guarded, code: str) -> None:
    guarded.user_code = code
    browser = Browser()
    servers = connections(on_sign_in=browser)
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": {"type": "device"}})
    with pytest.raises(ToolUnavailable, match="cannot be shown: it is too long or not plain"):
        servers.tools("own").result(SECONDS)
    assert browser.prompts == []
    servers.close()


def credentials(guarded: Guarded, **more: str) -> dict[str, Any]:
    auth = {"type": "client_credentials", "client_id": "robot", "client_secret": "${ROBOT}", "issuer": guarded.url}
    return {"url": f"{guarded.url}/mcp", "auth": {**auth, **more}}


def test_a_client_without_a_user_signs_in_by_itself(connections: Made, guarded: Guarded, secrets: Secrets) -> None:
    secrets.values["ROBOT"] = "robots-own-secret"
    servers = connections(on_sign_in=nobody)
    servers.add("own", credentials(guarded))
    assert said(servers, "echo") == "{}"
    assert guarded.log == ["client_credentials"]
    servers.close()


def test_credentials_are_sent_to_nobody_but_their_issuer(connections: Made, guarded: Guarded, secrets: Secrets) -> None:
    secrets.values["ROBOT"] = "robots-own-secret"
    servers = connections(on_sign_in=nobody)
    servers.add("own", credentials(guarded, issuer="https://issuer.test"))
    with pytest.raises(ToolUnavailable, match="its sign-in failed: ") as failure:
        servers.tools("own").result(SECONDS)
    assert "issuer.test" in failure.value.message
    assert (failure.value.reason, failure.value.remediation) == ("sign-in", "")
    assert guarded.log == []
    servers.close()


def test_wrong_credentials_are_told_of_without_them(connections: Made, guarded: Guarded, secrets: Secrets) -> None:
    secrets.values["ROBOT"] = "not-the-right-secret"
    servers = connections(on_sign_in=nobody)
    servers.add("own", credentials(guarded))
    with pytest.raises(ToolUnavailable, match="invalid_client") as failure:
        servers.tools("own").result(SECONDS)
    assert "not-the-right-secret" not in str(failure.value)
    servers.close()


def test_an_answer_for_another_sign_in_is_not_looked_at(connections: Made, guarded: Guarded) -> None:
    statuses: list[int] = []

    def browser(prompt: SignInPrompt) -> None:
        with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
            back = client.get(prompt.url).headers["location"]
            forged = back.partition("?")[0] + "?code=forged&state=guessed"
            statuses.append(client.get(forged).status_code)
            statuses.append(client.get(back).status_code)

    servers = connections(on_sign_in=browser)
    servers.add("own", {"url": f"{guarded.url}/mcp", "auth": "oauth"})
    assert said(servers, "echo") == "{}"
    assert statuses == [404, 200]
    servers.close()


def test_a_port_to_come_back_to_that_is_taken_is_named(connections: Made, guarded: Guarded) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        servers = connections(on_sign_in=nobody)
        auth = {"type": "authorization_code", "redirect_port": port}
        servers.add("own", {"url": f"{guarded.url}/mcp", "auth": auth})
        with pytest.raises(ToolUnavailable, match=f"port {port}") as failure:
            servers.tools("own").result(SECONDS)
    assert failure.value.reason == "sign-in"
    servers.close()


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "file:///etc/passwd", "https://user:pass@host.test/", "http:///x"]
)
def test_only_pages_are_opened_in_a_browser(url: str) -> None:
    with pytest.raises(InvalidArgument):
        show_sign_in(SignInPrompt("own", url))
