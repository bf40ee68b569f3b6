"""Large bodies in HTTP/2 where TLS ends at the egress proxy come as they were sent, both ways, with the clients people
use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network.servers import PATTERN
from tests.network.test_clients import needs
from tests.network.test_intercepted_h2 import talk as told
from tests.network.visits import World

from casemate import sync

DIGEST = hashlib.sha256(PATTERN).hexdigest()
HTTPX = """
import httpx, hashlib
with httpx.Client(http2=True, timeout=60) as client:
    answer = client.{}
    print(answer.http_version, {})
"""
NODE = """
const http2 = require('http2'), crypto = require('crypto')
const client = http2.connect('https://good.test:8443')
const pattern = []
for (let n = 0; n < 100003; n++) pattern.push(crypto.createHash('sha256').update(String(n)).digest())
const stream = client.request({':path': '%s', ':method': '%s'})
const hash = crypto.createHash('sha256')
let text = ''
stream.on('data', part => { hash.update(part); text += part.toString('latin1').slice(0, 100) })
stream.on('end', () => { console.log('HTTP/2', %s); client.close() })
stream.end(%s)
"""
HEARD = """
def received():
    data = one.recv(65536)
    if not data:
        raise EOFError
    return http.receive_data(data)
"""
CURL = "curl -sS -m 60 --http2 -w ' %{http_version}' https://good.test:8443"
WHOLE = "b''.join(hashlib.sha256(b'%d' % n).digest() for n in range(100003))"
MADE = 'open("p", "wb").write(b"".join(__import__("hashlib").sha256(b"%d" % n).digest() for n in range(100003)))'
DOWN = [
    pytest.param("shell", f"{CURL}/pattern -o /workspace/p; sha256sum /workspace/p", id="curl", marks=needs("curl")),
    pytest.param("python", HTTPX.format("get('https://good.test:8443/pattern')",
                                        "hashlib.sha256(answer.content).hexdigest()"), id="httpx"),
    pytest.param("node", NODE % ("/pattern", "GET", "hash.digest('hex')", ""), id="node",
                 marks=pytest.mark.needs("node")),
]  # fmt: skip
UP = [
    pytest.param("shell", f"python3 -c '{MADE}'; {CURL}/digest --data-binary @p", id="curl", marks=needs("curl")),
    pytest.param("python", HTTPX.format(f"post('https://good.test:8443/digest', content={WHOLE})", "answer.text"),
                 id="httpx"),
    pytest.param("node", NODE % ("/digest", "POST", "text", "Buffer.concat(pattern)"), id="node",
                 marks=pytest.mark.needs("node")),
]  # fmt: skip


@pytest.fixture
def sandbox(world: World, audit: Path) -> Iterator[sync.Sandbox]:
    with sync.Sandbox(audit=audit, allowed_domains=["good.test:8443"], intercept=["good.test:8443"],
                      trust=world.folder / "ca.pem") as made:  # fmt: skip
        yield made


def talk(sandbox: sync.Sandbox, program: str) -> list[str]:
    """What a client prints for which the end of the connection is an error, unless it waits for it."""
    return told(sandbox, HEARD + program)


@pytest.mark.parametrize(("language", "program"), [*DOWN, *UP])
def test_a_large_body_comes_as_it_was_sent(sandbox: sync.Sandbox, language: str, program: str) -> None:
    execution = sandbox.run(program, language=language)
    assert DIGEST in execution.stdout, execution.stdout + execution.stderr
    assert "HTTP/2" in execution.stdout or " 2" in execution.stdout


def test_an_answer_that_the_server_cuts_off_is_cut_off_and_others_go_on(sandbox: sync.Sandbox) -> None:
    program = """
http.increment_flow_control_window(1 << 24)
for stream, path in ((1, "/cut"), (3, "/pattern")):
    http.send_headers(stream, head(path), end_stream=True)
    http.increment_flow_control_window(1 << 24, stream)
send()
got, ended = {1: 0, 3: 0}, {}
while len(ended) < 2:
    for e in received():
        if isinstance(e, h2.events.DataReceived):
            got[e.stream_id] += len(e.data)
        elif isinstance(e, h2.events.StreamReset):
            ended[e.stream_id] = f"reset {int(e.error_code)}"
        elif isinstance(e, h2.events.StreamEnded):
            ended[e.stream_id] = "ended"
print(ended[1], got[1] < 3200096)
print(ended[3], got[3])
"""
    assert talk(sandbox, program) == ["reset 11 True", f"ended {len(PATTERN)}"]


def test_a_client_that_gives_an_answer_up_gets_the_next_whole(sandbox: sync.Sandbox) -> None:
    program = """
http.increment_flow_control_window(1 << 24)
got, ended = {}, False
for stream in (1, 3, 5):
    http.send_headers(stream, head("/pattern"), end_stream=True)
    http.increment_flow_control_window(1 << 24, stream)
    send()
    got[stream], ended = 0, False
    while not ended and (stream == 5 or got[stream] < 600000):
        for e in received():
            if isinstance(e, h2.events.DataReceived) and e.stream_id == stream:
                got[stream] += len(e.data)
            ended = ended or (isinstance(e, h2.events.StreamEnded) and e.stream_id == stream)
    if stream < 5:
        http.reset_stream(stream, 8)
        send()
print(got[5])
"""
    assert talk(sandbox, program) == [str(len(PATTERN))]


def test_a_padded_body_counts_for_windows_and_comes_without_its_padding(sandbox: sync.Sandbox) -> None:
    program = """
import hashlib
http.send_headers(1, head("/digest", method="POST"))
said = hashlib.sha256()
for n in range(40):
    while http.local_flow_control_window(1) < 10256:
        received()
    part = bytes([n]) * 10000
    said.update(part)
    http.send_data(1, part, pad_length=255, end_stream=n == 39)
    send()
text = ""
for e in events():
    text += e.data.decode() if isinstance(e, h2.events.DataReceived) else ""
print(text == said.hexdigest())
"""
    assert talk(sandbox, program) == ["True"]


@pytest.mark.parametrize(("length", "sent"), [(7, b"abc"), (2, b"abc")])
def test_a_request_whose_length_is_another_ends_the_connection(
    world: World, sandbox: sync.Sandbox, length: int, sent: bytes
) -> None:
    visits = world.visits()
    head = f"head(method='POST') + [('content-length', '{length}')]"
    program = f"http.send_headers(1, {head}); send(frame(0, 0, 1, {sent!r}) + frame(0, 1, 1, b'')); show()"
    assert set(talk(sandbox, program)) == {"goaway 1"}
    assert world.visits() == visits


def test_a_client_that_exceeds_its_window_is_told_and_sent_away(sandbox: sync.Sandbox) -> None:
    program = """
http.send_headers(1, head("/digest", method="POST"))
try:
    send(frame(0, 0, 1, bytes(16384)) * 40)
except OSError:
    pass
show()
"""
    said = talk(sandbox, program)
    assert said == [] or said[0] == "goaway 3"
