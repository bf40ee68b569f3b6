"""Placeholders become secrets in the one field of requests to the hosts that they are for, and nowhere else."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.egress.injection import Fields, Injection
from casemate.model.plan import Placeholder

VALUE, TEXT = "sk-RealRealRealRealReal1", "sk-aaaabbbbccccddddeeee2"
OTHER, OTHER_TEXT = "other+value/with=signs", "qqqqwwwweeeerrrrttttyy"
HOST = "api.good.test"
PLACES = frozenset({(HOST, 443), (HOST, 8443)})


def placeholder(
    header: str = "authorization", form: str = "Bearer {}", *, name: str = "TOKEN", value: str = VALUE, text: str = TEXT
) -> Placeholder:
    return Placeholder(name, text, value, PLACES, header, form)


def other(header: str = "authorization", form: str = "Bearer {}") -> Placeholder:
    return placeholder(header, form, name="OTHER", value=OTHER, text=OTHER_TEXT)


def sent(
    headers: Fields,
    *placeholders: Placeholder,
    host: str = HOST,
    port: int = 443,
    is_tls: bool = True,
    method: bytes = b"GET",
    target: bytes = b"/",
) -> tuple[Fields, tuple[str, ...], tuple[str, ...]]:
    """What goes to the server, what should be on record of what was not done, and what was."""
    rewrite: Injection = Injection(placeholders or (placeholder(),))
    done = rewrite.request(host, port, is_tls, method, target, headers)
    return [item for item in done.headers if item[0].lower() != b"accept-encoding"], done.notes, done.used


def basic(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


@pytest.mark.parametrize("port", [443, 8443])
@pytest.mark.parametrize("name", [b"Authorization", b"authorization", b"AUTHORIZATION"])
@pytest.mark.parametrize("value", [b"Bearer %s", b"bearer %s", b" Bearer %s\t"])
def test_a_placeholder_in_its_place_is_the_secret_to_the_server(name: bytes, value: bytes, port: int) -> None:
    host = (b"Host", HOST.encode() if port == 443 else b"%s:%d" % (HOST.encode(), port))
    headers, notes, used = sent([host, (name, value % TEXT.encode()), (b"Accept", b"*/*")], port=port)
    assert headers == [host, (name, b"Bearer " + VALUE.encode()), (b"Accept", b"*/*")]
    assert notes == ()
    assert used == ("TOKEN was injected into its field authorization",)


def test_what_is_whole_and_not_compressed_can_be_searched_for_it() -> None:
    rewrite = Injection([placeholder()])
    encodings = [(b"Accept-Encoding", b"gzip, br"), (b"accept-encoding", b"zstd")]
    asked = [*encodings, (b"Range", b"bytes=3-5"), (b"if-range", b'"x"')]
    untouched = rewrite.request(HOST, 443, True, b"GET", b"/", asked)
    assert untouched.headers == asked
    done = rewrite.request(HOST, 443, True, b"GET", b"/", [*asked, (b"authorization", f"Bearer {TEXT}".encode())])
    assert [value for name, value in done.headers if name.lower() == b"accept-encoding"] == [b"identity"]
    assert {name.lower() for name, _ in done.headers} == {b"accept-encoding", b"authorization"}


@pytest.mark.parametrize(
    ("user", "password", "expected"),
    [
        ("git", TEXT, basic("git", VALUE)),
        (TEXT, "", basic(VALUE, "")),
        (TEXT, "x-oauth-basic", basic(VALUE, "x-oauth-basic")),
        ("", TEXT, basic("", VALUE)),
        (TEXT, TEXT, basic(VALUE, VALUE)),
        ("a:b"[:1], TEXT, basic("a", VALUE)),
    ],
)
def test_it_may_be_the_user_or_the_password(user: str, password: str, expected: bytes) -> None:
    headers, notes, _ = sent([(b"Authorization", basic(user, password))], placeholder(form="Basic {}"))
    assert headers == [(b"Authorization", expected)]
    assert notes == ()


def test_two_secrets_are_the_user_and_the_password() -> None:
    both = (placeholder(form="Basic {}"), other(form="Basic {}"))
    headers, notes, used = sent([(b"Authorization", basic(TEXT, OTHER_TEXT))], *both)
    assert (headers, notes, len(used)) == ([(b"Authorization", basic(VALUE, OTHER))], (), 2)


def test_credentials_that_are_all_secret_are_put_in_as_they_are() -> None:
    headers, _, _ = sent([(b"Authorization", f"Basic {TEXT}".encode())], placeholder(form="Basic {}"))
    assert headers == [(b"Authorization", f"Basic {VALUE}".encode())]


@pytest.mark.parametrize(("text", "value"), [(TEXT, VALUE), (OTHER_TEXT, OTHER)])
def test_of_two_secrets_for_one_field_the_one_whose_placeholder_is_there_is_put_in(text: str, value: str) -> None:
    headers, notes, _ = sent([(b"Authorization", f"Bearer {text}".encode())], placeholder(), other())
    assert headers == [(b"Authorization", f"Bearer {value}".encode())]
    assert notes == ()


def test_two_secrets_in_fields_of_their_own_are_both_put_in() -> None:
    given = [(b"x-key", TEXT.encode()), (b"x-secret", OTHER_TEXT.encode())]
    headers, notes, _ = sent(given, placeholder("x-key", "{}"), other("x-secret", "{}"))
    assert headers == [(b"x-key", VALUE.encode()), (b"x-secret", OTHER.encode())]
    assert notes == ()


@pytest.mark.parametrize("headers", [[], [(b"Authorization", b"Bearer mine")], [(b"X-Other", b"x")]])
def test_nothing_is_added_to_a_request_without_a_placeholder(headers: Fields) -> None:
    assert sent(headers) == (headers, (), ())


AUTHORIZED = (b"Authorization", f"Bearer {TEXT}".encode())


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("evil.test", "host that it is not for"),
        ("api.good.test.evil.test", "host that it is not for"),
        ("good.test", "host that it is not for"),
        ("x.api.good.test", "host that it is not for"),
        ("evilapi.good.test", "host that it is not for"),
        ("API.good.test", "host that it is not for"),  # the egress proxy's names are canonical
    ],
)
def test_va_15_another_host_gets_the_placeholder(host: str, where: str) -> None:
    headers, (note,), used = sent([AUTHORIZED], host=host)
    assert (headers, used) == ([AUTHORIZED], ())
    assert where in note
    assert "TOKEN" in note


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"is_tls": False}, "in clear"),
        ({"is_tls": False, "port": 80}, "in clear"),
        ({"port": 444}, "port"),
        ({"port": 80}, "port"),
        ({"method": b"TRACE"}, "method"),
        ({"method": b"trace"}, "method"),
        ({"method": b"CONNECT"}, "method"),
    ],
)
def test_va_15_in_clear_at_another_port_and_where_it_would_come_back_it_stays_a_placeholder(
    given: dict[str, object], where: str
) -> None:
    headers, (note,), used = sent([AUTHORIZED], **given)  # type: ignore[arg-type]
    assert (headers, used) == ([AUTHORIZED], ())
    assert where in note


@pytest.mark.parametrize(
    "headers",
    [
        [(b"X-Other", TEXT.encode())],
        [(b"X-Other", f"Bearer {TEXT}".encode())],
        [(b"Cookie", f"a={TEXT}".encode())],
        [(b"Proxy-Authorization", f"Bearer {TEXT}".encode())],
        [(b"Authorization-", f"Bearer {TEXT}".encode())],
        [(b"X-Other", basic("git", TEXT))],
        [(TEXT.encode(), b"x")],
        [(b"Authorization", TEXT.encode())],
        [(b"Authorization", f"Bearer {TEXT}x".encode())],
        [(b"Authorization", f"Bearer x{TEXT}".encode())],
        [(b"Authorization", f"Bearer {TEXT}, Bearer {TEXT}".encode())],
        [(b"Authorization", f"Bearer  {TEXT}".encode())],
        [(b"Authorization", f"Bearer {TEXT}\r\n x".encode())],
        [(b"Authorization", f"Bearer\r\n {TEXT}".encode())],
        [(b"Authorization", f"Token {TEXT}".encode())],
        [(b"Authorization", basic("git", TEXT))],
        [AUTHORIZED, (b"authorization", b"Bearer x")],
        [AUTHORIZED, AUTHORIZED],
        [(b"Host", b"evil.test"), AUTHORIZED],
        [(b"Host", b"api.good.test:8443"), AUTHORIZED],
        [(b"Host", b"api.good.test"), (b"Host", b"evil.test"), AUTHORIZED],
    ],
)
def test_va_15_anywhere_else_in_a_head_it_stays_a_placeholder_and_is_on_record(headers: Fields) -> None:
    kept, notes, used = sent(headers)
    assert kept == headers
    assert used == ()
    assert notes
    assert all("TOKEN" in note and VALUE not in note and TEXT not in note and len(note) <= 200 for note in notes)


@pytest.mark.parametrize("target", [f"/?key={TEXT}", f"/{TEXT}/x", "/" + "".join(f"%{ord(c):02x}" for c in TEXT)])
def test_va_15_in_the_url_it_stays_a_placeholder_and_is_on_record_though_the_field_is_filled(target: str) -> None:
    headers, (note,), used = sent([AUTHORIZED], target=target.encode())
    assert headers == [(b"Authorization", f"Bearer {VALUE}".encode())]
    assert "in the URL" in note
    assert used


def test_credentials_of_other_forms_are_left_as_they_are() -> None:
    for value in (b"Basic !!!", b"Basic ", b"Basic YQ", b"Basic YQ==", b"Basic", b"Digest x"):
        assert sent([(b"Authorization", value)], placeholder(form="Basic {}")) == ([(b"Authorization", value)], (), ())


def test_a_user_with_a_colon_in_it_is_none() -> None:
    odd = placeholder(form="Basic {}", value="user:password-of-it")
    headers, notes, _ = sent([(b"Authorization", basic(TEXT, "x"))], odd)
    assert headers == [(b"Authorization", basic(TEXT, "x"))]
    assert notes


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"authorization", b"Authorization", b"x", b"host", b"cookie", b"accept-encoding"]),
            st.lists(st.sampled_from([b"Bearer ", b"Basic ", TEXT.encode(), HOST.encode(), b"a", b" ", b"\xff"])).map(
                b"".join
            ),
        ),
        max_size=5,
    ),
    st.sampled_from([HOST, "evil.test"]),
    st.booleans(),
    st.sampled_from([443, 80, 8443]),
)
def test_va_15_whatever_is_sent_the_value_is_only_ever_its_fields_whole_value(
    headers: Fields, host: str, is_tls: bool, port: int
) -> None:
    kept, _, used = sent(headers, host=host, is_tls=is_tls, port=port)
    with_it = [(name, value) for name, value in kept if VALUE.encode() in name + value]
    assert all(name.lower() == b"authorization" and value == f"Bearer {VALUE}".encode() for name, value in with_it)
    assert len(with_it) == len(used) <= (host == HOST and is_tls and port != 80)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(st.lists(st.integers(0, 200), max_size=30), st.integers(0, 50), st.integers(0, 50))
def test_a_placeholder_in_a_body_is_on_record_once_however_it_comes(cuts: list[int], before: int, after: int) -> None:
    watch = Injection([placeholder(), other()]).watch()
    body = b"s" * before + TEXT.encode() + b"k-" * after + TEXT.encode()
    notes = [note for piece in pieces(body, cuts) for note in watch(piece)]
    assert notes == ["the placeholder of TOKEN was sent in the body and not replaced"]


@pytest.mark.parametrize(
    "body", [b"", b"x" * 100_000, TEXT[:-1].encode(), TEXT[:5].encode() + b" " + TEXT[5:].encode()]
)
def test_a_body_without_one_is_not_spoken_of(body: bytes) -> None:
    watch = Injection([placeholder()]).watch()
    assert watch(body) + watch(body) == ()


def test_a_placeholder_that_a_form_has_encoded_is_seen() -> None:
    bot = placeholder(text="1234567890:aaaabbbbccccddddeeeeffffgggghhhhiiii")
    assert Injection([bot]).watch()(b"token=1234567890%3Aaaaabbbbccccddddeeeeffffgggghhhhiiii")


@given(st.lists(st.integers(0, 400), max_size=40), st.binary(max_size=60), st.binary(max_size=60))
def test_an_answer_that_gives_the_value_back_gives_the_placeholder_and_is_as_long(
    cuts: list[int], before: bytes, after: bytes
) -> None:
    hiding = Injection([placeholder()]).hide(HOST)
    body = (
        before
        + VALUE.encode()
        + after
        + base64.b64encode(f"git:{VALUE}".encode())
        + VALUE.encode()
        + VALUE.encode()[:9]
    )
    told = b"".join([hiding.feed(piece) for piece in pieces(body, cuts)]) + hiding.finish()
    assert len(told) == len(body)
    assert VALUE.encode() not in told
    assert TEXT.encode() in told
    assert base64.b64encode(VALUE.encode() + b"x")[4:28] not in told


def test_a_value_that_is_shorter_than_its_placeholder_is_hidden_by_asterisks() -> None:
    short = placeholder(value="hunter2!", text="abcdefgh12345678")
    hiding = Injection([short]).hide(HOST)
    assert hiding.feed(b"you sent hunter2! here") + hiding.finish() == b"you sent ******** here"


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=20))
def test_an_answer_without_a_value_comes_as_it_is(body: bytes, cuts: list[int]) -> None:
    for host in (HOST, "evil.test"):
        hiding = Injection([placeholder()]).hide(host)
        assert b"".join([hiding.feed(piece) for piece in pieces(body, cuts)]) + hiding.finish() == body


def test_only_hosts_that_have_a_secret_are_to_be_looked_into() -> None:
    assert Injection([placeholder(), other()]).hosts == {HOST}
    assert Injection([]).hosts == frozenset()


def test_no_repr_has_a_value() -> None:
    rewrite = Injection([placeholder()])
    assert VALUE not in repr((rewrite, rewrite.hide(HOST), placeholder()))
