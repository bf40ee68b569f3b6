"""Requests are refused where two readers could understand them differently, and what is written says what was read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.egress.http1 import MOST_HEAD, AnswerReader, BadAnswer, BadRequest, HttpRequest, RequestReader


def head(text: bytes) -> HttpRequest:
    request = RequestReader().head(text)
    assert request is not None
    return request


PLAIN = b"GET /x?y HTTP/1.1\r\nHost: good.test\r\nAccept: */*\r\n\r\n"


def test_a_request_is_written_as_it_was_understood() -> None:
    request = head(PLAIN)
    assert (request.host, request.port, request.path, request.length) == ("good.test", None, "/x?y", 0)
    assert request.serialize("good.test", request.passed_on()) == (
        b"GET /x?y HTTP/1.1\r\nHost: good.test\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n"
    )


def test_a_url_is_taken_apart() -> None:
    request = head(b"GET http://good.test:8080/x HTTP/1.1\r\nHost: good.test:8080\r\nProxy-Authorization: s\r\n\r\n")
    assert (request.url_host, request.url_port, request.path) == ("good.test", 8080, "/x")
    assert b"Proxy-Authorization" not in request.serialize("good.test:8080", request.passed_on())


def test_connect_has_an_authority() -> None:
    request = head(b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n")
    assert (request.method, request.url_host, request.url_port) == ("CONNECT", "good.test", 443)


def test_a_header_that_is_called_hop_by_hop_goes_on_all_the_same() -> None:
    request = head(b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: 1\r\nConnection: host, x-key, close\r\n\r\n")
    written = request.serialize("good.test", request.passed_on())
    assert b"\r\nConnection: close\r\n" in written
    assert b"\r\nHost: good.test\r\n" in written
    assert b"X-Key: 1" in written


@pytest.mark.parametrize("protocol", [b"h2c", b"TLS/1.0", b"websocket, h2c"])
def test_an_upgrade_to_something_else_than_a_websocket_is_not_passed_on(protocol: bytes) -> None:
    fields = b"Upgrade: " + protocol + b"\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n\r\n"
    request = head(b"GET / HTTP/1.1\r\nHost: good.test\r\n" + fields)
    assert not request.upgrades
    assert b"pgrade" not in request.serialize("good.test", request.passed_on())


BAD = {
    "bare line feeds": b"GET / HTTP/1.1\nHost: good.test\n\n\r\n\r\n",
    "a bare line feed": b"GET / HTTP/1.1\r\nHost: good.test\nX: y\r\n\r\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\nHost: good.test\rX: y\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: good.test\r\nX: y\r\n z\r\n\r\n",
    "a folded host": b"GET / HTTP/1.1\r\nHost:\r\n evil.test\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nHost: good.test\0\r\n\r\n",
    "an empty line first": b"\r\nGET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a space first": b" GET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
    "the same host twice": b"GET / HTTP/1.1\r\nHost: good.test\r\nhost: good.test\r\n\r\n",
    "a host with credentials": b"GET / HTTP/1.1\r\nHost: good.test@evil.test\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: good.test/x\r\n\r\n",
    "a list of hosts with a port": b"GET / HTTP/1.1\r\nHost: good.test:80:81\r\n\r\n",
    "a port too high": b"GET / HTTP/1.1\r\nHost: good.test:99999\r\n\r\n",
    "an empty host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost : good.test\r\n\r\n",
    "length and encoding": b"POST / HTTP/1.1\r\nHost: a.b\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a.b\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
    "a signed length": b"POST / HTTP/1.1\r\nHost: a.b\r\nContent-Length: +3\r\n\r\n",
    "another encoding": b"POST / HTTP/1.1\r\nHost: a.b\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "an obscured encoding": b"POST / HTTP/1.1\r\nHost: a.b\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "two encodings": b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks in 1.0": b"POST / HTTP/1.0\r\nHost: a.b\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\nHost: good.test\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: good.test\r\n\r\n",
    "another scheme": b"GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a URL with credentials": b"GET http://u@evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a target that is no path": b"GET x HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a fragment": b"GET /x#y HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a space in the target": b"GET /x y HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a head without an end": b"GET / HTTP/1.1\r\nX: " + b"a" * MOST_HEAD,
    "a bomb of fields": b"GET / HTTP/1.1\r\nHost: good.test\r\n" + b"a: b\r\n" * 300 + b"\r\n",
    "TLS": b"\x16\3\1\2\0\1\0\1\xfc\3\3\r\n\r\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_request_that_could_be_read_in_two_ways_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest):
        RequestReader().head(text)


def test_a_head_that_is_not_whole_needs_more() -> None:
    assert {RequestReader().head(PLAIN[:count]) for count in range(1, len(PLAIN))} == {None}


def test_a_body_of_known_length_is_passed_on_and_the_next_request_is_left() -> None:
    reading = RequestReader()
    reading.head(b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\n\r\n")
    assert reading.body(b"ab") == (b"ab", False, b"")
    assert reading.body(b"cdeGET /") == (b"cde", True, b"GET /")


def test_a_length_that_is_said_twice_alike_is_written_once() -> None:
    request = head(b"POST / HTTP/1.1\r\nHost: a.b\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n")
    assert request.serialize("a.b", request.passed_on()).lower().count(b"content-length") == 1


def test_chunks_are_written_anew_without_extensions_and_trailers() -> None:
    reading = RequestReader()
    reading.head(b"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert reading.body(b"3;x=y\r\nabc\r\n0\r\nHost: evil.test\r\n\r\nGET") == (b"3\r\nabc\r\n0\r\n\r\n", True, b"GET")


@pytest.mark.parametrize(
    "body", [b"3\nabc\r\n0\r\n\r\n", b"g\r\n", b"3\r\nabcX\r\n0\r\n\r\n", b"-1\r\n", b"0x3\r\nabc\r\n"]
)
def test_a_chunk_that_could_be_read_in_two_ways_is_refused(body: bytes) -> None:
    reading = RequestReader()
    reading.head(b"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(BadRequest):
        reading.body(body)


@given(st.binary(max_size=400) | st.binary(max_size=200).map(lambda tail: PLAIN[:-2] + tail + b"\r\n\r\n"))
def test_bytes_of_any_kind_are_a_request_or_bad_or_too_few(data: bytes) -> None:
    try:
        request = RequestReader().head(data)
    except BadRequest:
        return
    if request is not None and request.method != "CONNECT":
        again = RequestReader().head(request.serialize(request.host, request.passed_on()))
        assert again is None or (again.host, again.path, again.length) == (request.host, request.path, request.length)


def follow(request: bytes, *answer: bytes) -> AnswerReader:
    following = AnswerReader(head(request))
    for part in answer:
        fed(following, part)
    return following


def fed(following: AnswerReader, data: bytes) -> None:
    """Step by step, as the egress proxy does."""
    has_more = following.feed(data)
    while has_more:
        has_more = following.feed()


def test_the_end_of_an_answer_is_seen() -> None:
    assert follow(PLAIN, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_whole
    assert follow(PLAIN, b"HTTP/1.1 204 No Content\r\n\r\n").is_whole
    assert follow(PLAIN, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab").plain == 3
    assert follow(PLAIN, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").is_whole
    assert follow(PLAIN, b"HTTP/1.1 200 OK\r\n\r\nab").is_open
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert not follow(PLAIN, chunked, b"2\r\nab\r\n").is_whole
    assert follow(PLAIN, chunked, b"2\r\nab\r\n", b"0\r\n\r\n").is_whole
    assert follow(PLAIN.replace(b"GET", b"HEAD"), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").is_whole
    assert follow(PLAIN, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n").is_whole


def test_an_upgrade_that_was_asked_for_is_seen_and_another_is_no_answer() -> None:
    asking = b"GET / HTTP/1.1\r\nHost: good.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    switched = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x00"
    assert follow(asking, switched).switches
    with pytest.raises(BadAnswer):
        follow(PLAIN, switched)


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"\0" * 9])
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(BadAnswer):
        follow(PLAIN, answer)


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=5))
def test_answers_of_any_kind_are_followed_or_bad(parts: list[bytes]) -> None:
    following = AnswerReader(head(PLAIN))
    try:
        for part in (b"HTTP/1.1 200 OK\r\n", *parts):
            fed(following, part)
            if following.is_whole or following.plain or following.is_open:
                return
    except BadAnswer:
        return


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"\r\n", b"a:b\r\n"])
def test_what_is_read_in_one_step_has_a_bounded_number_of_lines(piece: bytes) -> None:
    reading = RequestReader()
    reading.head(b"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n")
    data = piece * 10_000
    assert 0 < data[: reading.step(data)].count(b"\n") <= 512


def test_an_answer_with_more_fields_than_any_server_sends_is_refused() -> None:
    assert follow(PLAIN, b"HTTP/1.1 204 No Content\r\n" + b"a: b\r\n" * 999 + b"\r\n").is_whole
    with pytest.raises(BadAnswer):
        follow(PLAIN, b"HTTP/1.1 204 No Content\r\n" + b"a: b\r\n" * 1002)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20), st.integers(1, 4000))
def test_an_answer_in_chunks_ends_where_it_ends_however_it_is_cut(sizes: list[int], cut: int) -> None:
    body = b"".join(b"%x\r\n%s\r\n" % (size, b"\n" * size) for size in sizes) + b"0\r\nX: y\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    whole = interim * 3 + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    parts = [whole[at : at + cut] for at in range(0, len(whole), cut)]
    assert not follow(PLAIN, *parts[:-1]).is_whole
    following = follow(PLAIN, *parts)
    assert (following.is_whole, following.closes) == (True, False)
    assert follow(PLAIN, *parts[:-1], parts[-1] + b"HTTP/1.1 200 OK\r\n").closes
