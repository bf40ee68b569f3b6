"""HTTP/2 where TLS ends at the egress proxy, with a client that says what ordinary ones never do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network.test_intercepted import seeing
from tests.network.visits import World

from casemate import sync

CLIENT = '''
import socket, ssl
import h2.config, h2.connection, h2.events, h2.exceptions

context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
one = context.wrap_socket(socket.create_connection(("good.test", 8443), 20), server_hostname="good.test")
config = h2.config.H2Configuration(header_encoding="utf-8", validate_outbound_headers=False,
                                   normalize_outbound_headers=False)
http = h2.connection.H2Connection(config)
http.initiate_connection()

def head(path="/x", method="GET", authority="good.test:8443", scheme="https"):
    return [(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)]

def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

def send(more=b""):
    one.sendall(http.data_to_send() + more)

def events():
    """What is said until the other side ends or all streams have."""
    said = []
    try:
        while not any(isinstance(e, (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated))
                      for e in said):
            data = one.recv(65536)
            if not data:
                break
            said += http.receive_data(data)
            one.sendall(http.data_to_send())
    except (OSError, h2.exceptions.ProtocolError):
        pass
    return said

def show():
    for e in events():
        if isinstance(e, h2.events.ResponseReceived):
            print("status", dict(e.headers)[":status"])
        elif isinstance(e, h2.events.TrailersReceived):
            print("trailers", dict(e.headers))
        elif isinstance(e, h2.events.StreamReset):
            print("reset", int(e.error_code))
        elif isinstance(e, h2.events.ConnectionTerminated):
            print("goaway", int(e.error_code))
        elif isinstance(e, h2.events.DataReceived) and e.data:
            print("data", e.data.decode()[:60])
'''


@pytest.fixture
def sandbox(world: World, audit: Path) -> Iterator[sync.Sandbox]:
    with seeing(world, audit) as made:
        yield made


def talk(sandbox: sync.Sandbox, program: str) -> list[str]:
    execution = sandbox.run(CLIENT + program)
    assert execution.ok, execution.stderr
    return execution.stdout.splitlines()


def test_trailers_come_through(sandbox: sync.Sandbox) -> None:
    said = talk(sandbox, "http.send_headers(1, head('/trailers'), end_stream=True); send(); show()")
    assert said == ["status 200", "data hello from GET /trailers", "trailers {'x-trailer': 'last'}"]


def test_the_end_of_a_servers_connection_is_said_after_its_last_answer(sandbox: sync.Sandbox) -> None:
    program = """
http.send_headers(1, head("/bye"), end_stream=True)
send()
show()
while data := one.recv(65536):
    for e in http.receive_data(data):
        if isinstance(e, h2.events.ConnectionTerminated):
            print("goaway", int(e.error_code), e.last_stream_id)
"""
    said = talk(sandbox, program)
    assert said[:2] == ["status 200", "data hello from GET /bye"]
    assert said[2] in ("goaway 0 1", "goaway 0")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("head(authority='evil.test')", "names another host"),
        ("head(authority='good.test')", "names another host"),
        ("head(authority='good.test:8443') + [('host', 'evil.test')]", None),
        ("head(scheme='http')", "scheme is not https"),
        ("head(method='CONNECT')", None),
        ("head(method='get')", "method is none"),
        ("head(path='http://evil.test/')", "path is none"),
        ("head(path='/x#y')", "path is none"),
        ("head() + [('x', 'a\\r\\nb: c')]", None),
        ("head() + [('connection', 'close')]", None),
        ("head() + [('X-Upper', 'case')]", None),
        ("head() + [('x(y', 'z')]", "a field that is none"),
        ("head() + [(f'x-{n}', 'y') for n in range(300)]", "256 header fields"),
    ],
)
def test_a_head_that_could_be_read_otherwise_never_reaches_the_server(
    world: World, sandbox: sync.Sandbox, head: str, why: str | None
) -> None:
    visits = world.visits()
    said = talk(sandbox, f"http.send_headers(1, {head}, end_stream=True); send(); show()")
    if why is None:
        assert "status 200" not in said
    else:
        assert said[0] == "status 403"
    assert world.visits() == visits


FLOODS = {
    "resets": """
for n in range(400):
    http.send_headers(2 * n + 1, head(), end_stream=True)
    http.reset_stream(2 * n + 1)
    try:
        send()
    except OSError:
        break
show()""",
    "settings": "send(frame(4, 0, 0, b'') * 4000); show()",
    "large settings": "send(frame(4, 0, 0, b'\\0\\x04\\0\\0\\0\\1' * 10000)); show()",
    "a head in large frames": "send(frame(1, 0, 1, b'x' * 30000) + frame(9, 0, 1, b'x' * 30000)); show()",
    "pings": "send(frame(6, 0, 0, b'12345678') * 4000); show()",
    "empty data": """
http.send_headers(1, head(method="POST")); send(frame(0, 0, 1, b'') * 4000); show()""",
    "a head without end": "send(frame(1, 0, 1, b'\\x82') + frame(9, 0, 1, b'\\x84') * 100); show()",
    "a head that is too long": """
send(frame(1, 0, 1, b'\\x40\\x01a\\x7f' + b'\\xa1\\x1f' + b'x' * 4000) + frame(9, 0, 1, b'\\xbe' * 16000)); show()""",
    "a frame that is too long": "send(frame(0, 0, 1, b'x' * 70000)); show()",
}


ON_RECORD = ("resets", "settings", "large settings", "a head in large frames", "pings", "empty data",
             "a head without end")  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_its_connection_and_nobody_elses(world: World, sandbox: sync.Sandbox, flood: str) -> None:
    execution = sandbox.run(CLIENT + FLOODS[flood])
    assert "status 200" not in execution.stdout or flood == "resets", execution.stdout
    reasons = [crossing.reason for crossing in execution.crossings if crossing.decision == "denied"]
    assert any(reason.startswith("HTTP/2: ") for reason in reasons) == (flood in ON_RECORD), reasons
    again = "import httpx; print(httpx.Client(http2=True).get('https://good.test:8443/again').text)"
    assert sandbox.run(again).stdout == "hello from GET /again\n"


def test_a_client_that_does_not_take_an_answer_holds_up_no_other_stream(sandbox: sync.Sandbox) -> None:
    program = """
http.send_headers(1, head("/big"), end_stream=True)
send()
got = 0
while got < 60000:
    got += sum(len(e.data) for e in http.receive_data(one.recv(65536)) if isinstance(e, h2.events.DataReceived))
http.increment_flow_control_window(1000000)
http.send_headers(3, head("/other"), end_stream=True)
send()
done = False
while not done:
    for e in http.receive_data(one.recv(65536)):
        if isinstance(e, h2.events.DataReceived) and e.stream_id == 3 and e.data:
            print(e.data.decode())
        done = done or (isinstance(e, h2.events.StreamEnded) and e.stream_id == 3)
"""
    assert talk(sandbox, program) == ["hello from GET /other"]


UPLOAD = """
def until(kind):
    "What is said until something of this kind is."
    said = []
    while not any(isinstance(e, kind) for e in said):
        said += http.receive_data(one.recv(65536))
        one.sendall(http.data_to_send())
    return said

def is_answered(said):
    return any(isinstance(e, h2.events.ResponseReceived) for e in said)

http.send_headers(1, head("/x", "POST") + LENGTH)
http.ping(b"in order")
send()
early = until(h2.events.PingAckReceived)
print("answered early", is_answered(early))
if not is_answered(early):
    http.send_data(1, b"data", end_stream=True)
    send()
    said = until(h2.events.StreamEnded)
    http.ping(b"and then")
    send()
    said += until(h2.events.PingAckReceived)
    print([dict(e.headers)[":status"] for e in said if isinstance(e, h2.events.ResponseReceived)])
    print("reset", any(isinstance(e, h2.events.StreamReset) for e in said))
"""


def test_a_refusal_waits_for_a_body_that_is_said_to_be_short_and_for_no_other(
    world: World, sandbox: sync.Sandbox
) -> None:
    visits = world.visits()
    short = talk(sandbox, UPLOAD.replace("LENGTH", "[('content-length', '4')]"))
    assert short == ["answered early False", "['403']", "reset False"]
    for length in ("[]", "[('content-length', '70000')]"):
        assert talk(sandbox, UPLOAD.replace("LENGTH", length)) == ["answered early True"]
    assert world.visits() == visits
