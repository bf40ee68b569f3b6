"""HTTP as others' clients meet it: errors, bounds, streams that are taken up again, and the description."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import pytest
from tests.service.daemon import Daemon, http, unix
from tests.support.waiting import MAX_WAIT

from casemate.errors import CasemateError, Fault, QueueFull, SandboxClosed
from casemate.operations.catalogue import catalogue
from casemate.operations.documents import error_document
from casemate.remote.sse import EventReader
from casemate.surfaces.http.app import retry_after, status_of
from casemate.surfaces.http.exchange import MOST_BODY, json_pieces

JSON = "Host: localhost\nContent-Type: application/json"


def ask(daemon: Daemon, line: str, body: bytes = b"{}", headers: str = JSON) -> tuple[int, dict[str, str], Any]:
    with unix(daemon) as one:
        status, told, raw = http(one, f"{line} HTTP/1.1\n{headers}", body)
    return status, told, json.loads(raw)


@pytest.mark.parametrize(
    ("line", "body", "status", "kind"),
    [
        ("POST /v1/nothing", b"{}", 404, "not_found"),
        ("GET /v1/runs/list", b"", 405, "invalid"),
        ("GET /", b"", 404, "not_found"),
        ("OPTIONS *", b"", 404, "not_found"),
        ("CONNECT x.test:1", b"", 404, "not_found"),
        ("POST /v1/runs/get", b"{}", 400, "invalid"),
        ("POST /v1/runs/get", b'{"run": "x"}', 404, "not_found"),
        ("POST /v1/runs/get", b'{"run": "x", "extra": 1}', 400, "invalid"),
        ("POST /v1/runs/get", b"[]", 400, "invalid"),
        ("POST /v1/runs/get", b"{", 400, "invalid"),
        ("POST /v1/runs/get", b'{"run": NaN}', 400, "invalid"),
        ("POST /v1/runs/get", b"[" * 20_000, 400, "invalid"),
        ("POST /v1/runs/get", b'{"run": "\xff"}', 400, "invalid"),
        ("GET /v1/artifacts/x/y", b"", 404, "not_found"),
        ("GET /v1/files/x/../../etc/passwd", b"", 404, "not_found"),
        ("POST /v1/runs/list", b" " * (MOST_BODY + 1), 413, "invalid"),
    ],
)
def test_an_error_has_its_status_its_kind_and_words(
    shared: Daemon, line: str, body: bytes, status: int, kind: str
) -> None:
    found, headers, told = ask(shared, line, body)
    assert (found, told["error"]["kind"]) == (status, kind)
    assert told["error"]["message"]
    assert headers["content-type"] == "application/json"
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("GET /v1/runs/list", "POST"),
        ("PUT /v1/runs/start", "POST"),
        ("OPTIONS /v1/doctor", "POST"),
        ("GET /v1/files/read", "POST"),
        ("GET /v1/service/stop", "POST"),
        ("POST /v1/uploads", "PUT"),
        ("POST /v1/health", "GET"),
        ("DELETE /openapi.json", "GET"),
        ("POST /v1/artifacts/x/y/z", "GET"),
        ("POST /v1/files/x/y", "GET"),
    ],
)
def test_a_path_with_another_method_says_which_one_it_is_for(shared: Daemon, line: str, allowed: str) -> None:
    status, headers, told = ask(shared, line)
    assert (status, headers["allow"], told["error"]["kind"]) == (405, allowed, "invalid")
    assert f"with {allowed}" in told["error"]["remediation"]


@pytest.mark.parametrize(("path", "meant"), [("runs/strat", "runs.start"), ("archives/pak", "archives.pack")])
def test_an_operation_that_is_misspelt_is_not_there_and_the_nearest_is_told(
    shared: Daemon, path: str, meant: str
) -> None:
    status, headers, told = ask(shared, f"POST /v1/{path}")
    assert (status, "allow" in headers) == (404, False)
    assert told["error"]["message"].endswith(f"; did you mean {meant}?")
    assert "openapi" in told["error"]["remediation"]


@pytest.mark.parametrize(
    ("body", "argument", "said", "remedy"),
    [
        (b'{"coed": "1"}', "coed", "; did you mean code?", "It takes: code, language, "),
        (b'{"qqqq": "1"}', "qqqq", "runs.start takes no such argument", "It takes: code, language, "),
        (b"{}", "code", "Field required", "code of runs.start: The program."),
        (b'{"code": 1}', "code", "string", "code of runs.start: The program."),
        (b'{"code": 1, "limits": {"memroy": 1}}', "limits", "takes no 'memroy'; did you mean memory?", "cpu_time, "),
        (b'{"code": "1", "files": {"a": {"base64": "?"}}}', "files", "is not base64", "RFC 4648"),
        (b'{"code": "1", "files": {"a": {"handle": "x"}}}', "handle", "there is no upload 'x'", "Upload the file"),
        (b'{"code": "1", "session": "new", "stdin": "", "wait": -1}', "wait", "greater", "How long to wait"),
        (b"[]", "body", "must be a JSON object", "JSON object"),
        (b"nothing", "body", "is not JSON", "JSON object"),
        ('{"code": "1"}'.encode("utf-16"), "body", "is not JSON: 'utf-8'", "in UTF-8"),
        # whose lists would lie in a text where they are counted: in UTF-16 a quotation mark is a part of this sign
        ('{"\u2200": [[], []]}'.encode("utf-16-le"), "body", "is not JSON", "in UTF-8"),
        (b"\xef\xbb\xbf{}", "code", "Field required", "code of runs.start: The program."),
    ],
)
def test_a_wrong_argument_is_told_with_what_to_do_about_it(
    shared: Daemon, body: bytes, argument: str, said: str, remedy: str
) -> None:
    _, _, told = ask(shared, "POST /v1/runs/start", body)
    assert told["error"]["argument"] == argument
    assert said in told["error"]["message"]
    assert remedy in told["error"]["remediation"]


def test_every_kind_of_error_has_a_status() -> None:
    def below(one: type[CasemateError]) -> list[type[CasemateError]]:
        return [one, *(deep for other in one.__subclasses__() for deep in below(other))]

    for one in below(CasemateError):
        if one is not CasemateError and one.__module__ == CasemateError.__module__:
            made = one.__new__(one)
            assert status_of(made) != 500 or one.kind == "fault", one


def test_an_error_that_ends_by_itself_says_when_to_try_again() -> None:
    full = QueueFull("full", retry_after=2.5)
    assert (status_of(full), retry_after(error_document(full))) == (429, "3")
    assert retry_after(error_document(SandboxClosed("ending"))) == "2"
    assert retry_after(error_document(Fault("broken"))) is None


def test_the_description_is_of_every_operation_and_whole(shared: Daemon) -> None:
    status, _, told = ask(shared, "GET /openapi.json", b"")
    assert (status, told["openapi"]) == (200, "3.1.0")
    for name, operation in catalogue().items():
        described = told["paths"][f"/v1/{name.replace('.', '/')}"]["post"]
        assert (described["operationId"], described["x-audience"]) == (name, operation.audience)
    text = json.dumps(told)
    assert "$defs" not in text
    schemas = told["components"]["schemas"]
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= schemas.keys()


def test_a_stream_is_taken_up_again_where_it_was_left(shared: Daemon) -> None:
    code = "import sys\nfor n in range(5): print(n, flush=True); print(n, file=sys.stderr, flush=True)"
    _, _, state = ask(shared, "POST /v1/runs/start", json.dumps({"code": code, "wait": 30.0}).encode())
    body = json.dumps({"run": state["run"]}).encode()

    def stream(headers: str = "") -> list[Any]:
        with unix(shared) as one:
            text = f"POST /v1/runs/stream HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{headers}"
            one.sendall(f"{text}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            raw = b""
            while piece := one.recv(65536):
                raw += piece
        head, _, rest = raw.partition(b"\r\n\r\n")
        assert b"text/event-stream" in head
        return [event for event in EventReader().feed(_unchunked(rest)) if event.name != "message"]

    whole = stream()
    assert [event.name for event in whole] == ["event"] * (len(whole) - 1) + ["end"]
    assert [int(event.id) for event in whole[:-1]] == list(range(1, len(whole)))
    assert whole[-2].data["event"] == "done"
    for left in (1, 3, len(whole) - 2):
        assert stream(f"Last-Event-ID: {left}\r\n") == whole[left:]
    status, _, told = ask(shared, "POST /v1/runs/stream", body, f"{JSON}\nLast-Event-ID: x")
    assert (status, told["error"]["kind"]) == (400, "invalid")
    status, _, told = ask(shared, "POST /v1/runs/stream", b'{"run": "x"}')
    assert (status, told["error"]["kind"]) == (404, "not_found")


def _unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found, data = found + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return found


def test_whoever_goes_away_takes_the_call_along_and_not_the_run(shared: Daemon) -> None:
    async def use() -> None:
        remote = await shared.connect()
        run = (await remote("runs.start", {"code": "import time; time.sleep(60)"}))["run"]
        waiting = asyncio.ensure_future(remote("runs.wait", {"run": run, "seconds": 60.0}))
        while (await remote.health())["activity"]["requests"] < 1:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while (await remote.health())["activity"]["requests"] > 0:
            await asyncio.sleep(0.01)
        assert (await remote("runs.get", {"run": run}))["status"] in ("running", "queued")
        await remote("runs.cancel", {"run": run})
        await remote.close()

    asyncio.run(use())


def test_one_who_reads_nothing_holds_up_nobody_else(shared: Daemon) -> None:
    code = "for n in range(400): print('x' * 10_000)"
    limits = {"full_output": "64MiB"}
    _, _, state = ask(
        shared, "POST /v1/runs/start", json.dumps({"code": code, "limits": limits, "wait": 60.0}).encode()
    )
    assert state["status"] == "done"
    body = json.dumps({"run": state["run"]}).encode()
    idle = [unix(shared) for _ in range(20)]
    try:
        for one in idle:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(
                b"POST /v1/runs/stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(ask(shared, "POST /v1/runs/list")[0]))
        thread.start()
        thread.join(MAX_WAIT)
        assert answers == [200]
    finally:
        for one in idle:
            one.close()


@pytest.mark.parametrize(
    "value",
    [
        None, "", "plain", {"a": "x" * 1_000_000}, ["😀ü" * 400_000, {"deep": ["y" * 600_000] * 2}],
        {"many": list(range(200_000)), "empty": {}, "none": []}, [{"n": n} for n in range(60_000)],
    ],
    ids=range(7),
)  # fmt: skip
async def test_json_in_pieces_is_the_same_json(value: Any) -> None:
    pieces = [piece async for piece in json_pieces(value)]
    assert json.loads(b"".join(pieces)) == value
    assert max(len(piece) for piece in pieces) < 4 << 20
