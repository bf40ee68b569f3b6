"""``casemate serve --transport http`` against those who would take it from others: a real process, small bounds."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import environment, http, tcp
from tests.service.test_shares import KINDS, called, of_tool
from tests.support.waiting import until

TOKEN = "a-token-of-the-tests-alone"
SECONDS = 60.0
# The command as it is, but for bounds that a test can reach.
PROGRAM = """
import sys
from casemate.surfaces.http import server as serving
from casemate.surfaces.http import exchange
serving._MOST_CONNECTIONS, serving._HEAD_WITHIN, exchange._BODY_WITHIN = 8, {head}, {body}
from casemate.surfaces.cli import main
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Listening:
    process: subprocess.Popen[bytes]
    port: int

    def head(self, more: str = "", token: str = TOKEN) -> str:
        asked = f"POST /mcp HTTP/1.1\nHost: 127.0.0.1:{self.port}\nAuthorization: Bearer {token}\n"
        return f"{asked}{of_tool('execute_code')}{more}{KINDS}"

    def ask(self, body: bytes, token: str = TOKEN) -> tuple[int, Any]:
        with tcp(self.port) as one:
            status, _, said = http(one, self.head(token=token), body)
        return status, json.loads(said)


@contextlib.contextmanager
def serving(folder: Path, head: float = SECONDS, body: float = SECONDS) -> Iterator[Listening]:
    command = ["serve", "--embedded", "--transport", "http", "--port", "0", "--allow-origin", "https://app.test"]
    env = {**environment(folder), "CASEMATE_SERVE_TOKEN": TOKEN}
    with tempfile.TemporaryFile() as log:
        program = PROGRAM.format(head=head, body=body)
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command], env=env, stdin=subprocess.DEVNULL, stderr=log
        )

        def told() -> re.Match[bytes] | None:
            said = os.pread(log.fileno(), 65536, 0)
            assert process.poll() is None, said
            return re.search(rb"listens at http://127.0.0.1:(\d+)/mcp", said)

        try:
            yield Listening(process, int(until(told)[1]))
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with serving(tmp_path_factory.mktemp("listening")) as one:
        yield one


@pytest.mark.full
@pytest.mark.parametrize(
    "filling",
    [
        b"[" + b"[]," * 300_000 + b"1]",
        b'["' + b'","' * 300_000 + b'"]',
        b"[" + b"1," * 700_000 + b"1]",
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=["lists", "texts", "numbers", "deep"],
)
def test_a_body_that_holds_too_much_is_refused_before_it_is_read(listening: Listening, filling: bytes) -> None:
    body = called("execute_code", {"code": "X"}).replace(b'"X"', filling)
    status, said = listening.ask(body)
    assert (status, said["error"]["kind"]) == (413, "invalid")


def test_a_body_that_is_too_large_is_refused_before_it_comes(listening: Listening) -> None:
    assert status_of_head(listening, listening.head(f"Content-Length: {9 * 2**20}\n")) == 413


def status_of_head(listening: Listening, head: str, body: bytes = b"") -> int:
    """The status of the answer to a head, of whose body there may be less than it says."""
    with tcp(listening.port) as one:
        one.settimeout(SECONDS)
        one.sendall((head.replace("\n", "\r\n") + "\r\n\r\n").encode("latin-1") + body)
        with one.makefile("rb") as answer:
            return int(answer.readline().split()[1])


def test_whoever_has_no_token_has_nothing_read(listening: Listening) -> None:
    for token in (TOKEN + "x", "", "\u00e9" * 20):
        assert status_of_head(listening, listening.head("Content-Length: 8000000\n", token)) == 401


@pytest.mark.parametrize("more", ["Host: evil.test", "Host: 127.0.0.1", "Origin: http://evil.test"])
def test_a_page_or_a_name_bound_anew_is_refused_also_with_the_token(listening: Listening, more: str) -> None:
    head = listening.head(f"{more}\n" if more.startswith("Origin") else "")
    if more.startswith("Host"):
        head = head.replace(f"Host: 127.0.0.1:{listening.port}", more)
    with tcp(listening.port) as one:
        status, _, said = http(one, head, b"{}")
    assert (status, json.loads(said)["error"]["kind"]) == (403 if more.startswith("Origin") else 421, "denied")


@pytest.mark.parametrize("origin", ["http://127.0.0.1:{}", "http://localhost:{}", "https://app.test"])
def test_a_page_of_this_server_or_one_that_was_named_may_ask(listening: Listening, origin: str) -> None:
    head = listening.head(f"Origin: {origin.format(listening.port)}\n")
    with tcp(listening.port) as one:
        assert http(one, head, called("execute_code", {"code": "1"}))[0] == 200


def test_connections_that_say_nothing_keep_nobody_out(listening: Listening) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(tcp(listening.port)) for _ in range(40)]
        silent[-1].sendall(b"POST /mcp HTTP/1.1\r\nHost:")
        status, said = listening.ask(called("execute_code", {"code": "print(6 * 7)"}))
        assert (status, said["result"]["structuredContent"]["status"]) == (200, "ok")
        ended = [one for one in silent if is_ended(one)]
        assert len(ended) >= 30


def is_ended(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.full
def test_a_signal_ends_it_and_what_runs_in_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(serving(tmp_path))
        one = stack.enter_context(tcp(listening.port))
        body = called("execute_code", {"code": "import time; time.sleep(600)", "timeout_seconds": 600})
        body = body.replace(b'"_meta": {', b'"_meta": {"progressToken": 1, ')
        head = listening.head(f"Content-Length: {len(body)}\n").replace("\n", "\r\n")
        one.sendall(f"{head}\r\n\r\n".encode() + body)
        answer = stack.enter_context(one.makefile("rb"))
        until(lambda: b"notifications/progress" in answer.readline(), "it does not begin")
        listening.process.terminate()
        assert listening.process.wait(SECONDS) == 128 + 15
