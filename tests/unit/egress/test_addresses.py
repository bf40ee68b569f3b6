"""Which addresses are not dialled, whatever name resolves to them, and which are where a rule names them."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.egress.dial import NOBODYS, is_own
from casemate.model.addresses import why_refused

REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "203.0.113.9",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "fe80::1",
    "fd00::1",
    "2606:4700::1111",
    "::ffff:10.0.0.1",
    "::ffff:93.184.1.1",
    "64:ff9b::a00:1",
    "2002:0a00:0001::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "::10.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "93.184.1.1 ",
    "093.184.1.1",
    "",
    "good.test",
    "fe80::1%eth0",
]


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_not_public_unicast_ipv4_is_not_dialled(address: str) -> None:
    assert why_refused(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.1.1", "172.15.255.255", "172.32.0.1", "223.255.255.255"])
def test_a_public_address_may_be_dialled(address: str) -> None:
    assert why_refused(address) is None


@given(st.ip_addresses(v=4))
def test_no_address_that_is_not_global_may_be_dialled(address: ipaddress.IPv4Address) -> None:
    if not address.is_global or address.is_multicast:
        assert why_refused(str(address))


TEN = (ipaddress.IPv4Network("10.20.0.0/16"), ipaddress.IPv4Network("10.30.0.5"))
EVERYTHING = (ipaddress.IPv4Network("0.0.0.0/0"),)


@pytest.mark.parametrize("address", ["10.20.0.1", "10.20.255.255", "10.30.0.5"])
def test_a_private_address_may_be_dialled_where_a_rule_names_it(address: str) -> None:
    assert why_refused(address)
    assert why_refused(address, TEN) is None


@pytest.mark.parametrize(
    "address", ["10.21.0.1", "10.30.0.6", "93.184.1.1", "127.0.0.1", "172.16.0.1", "::ffff:10.20.0.1"]
)
def test_where_a_rule_names_addresses_no_other_may_be_dialled(address: str) -> None:
    assert why_refused(address, TEN)


@pytest.mark.parametrize("address", REFUSED)
def test_nothing_but_private_addresses_can_be_named_and_no_metadata(address: str) -> None:
    """Also by networks that no rule could have: they are looked at twice."""
    named = address in ("10.0.0.1", "100.64.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1")
    assert (why_refused(address, EVERYTHING) is None) == named


@given(st.text(max_size=60))
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError, UnicodeError):
        assert why_refused(text)


def test_the_hosts_own_addresses_are_known() -> None:
    assert is_own("127.0.0.1")
    if is_own(NOBODYS):
        pytest.skip("net.ipv4.ip_nonlocal_bind is on here")
    assert not is_own("93.184.1.1")
