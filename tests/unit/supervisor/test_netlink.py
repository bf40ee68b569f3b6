"""How many sockets of rtnetlink the supervisor allows."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from casemate.supervisor import kernel, sockets

MIB = 1 << 20


class Call:
    """A call that waits, from a process whose pid is its network's number."""

    def __init__(self, pid: int) -> None:
        self.pid, self.answer, self.is_asleep = pid, -1, True

    def send(self, number: int, *, go_on: bool = False) -> None:
        assert go_on == (number == 0)
        self.answer = number

    def has_gone_on(self) -> bool:
        return not self.is_asleep


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How many sockets each network has."""
    counts: dict[int, int] = {}
    monkeypatch.setattr(sockets, "_count_netlink", lambda pid: (pid, counts.get(pid, 0)))
    return counts


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> sockets.NetlinkCalls:
    """On a machine where one socket may hold 16 MiB."""
    monkeypatch.setattr(kernel, "install_notifying_filter", lambda _: 7)
    monkeypatch.setattr(sockets, "_most_waiting", lambda: 16 * MIB)
    return sockets.NetlinkCalls()


def ask(calls: sockets.NetlinkCalls, *networks: int) -> list[Any]:
    asked = [Call(network) for network in networks]
    for one in asked:
        calls._answer(one)  # type: ignore[arg-type]
    return asked


def test_callers_that_have_their_answer_and_have_not_gone_on_count_as_sockets(
    calls: sockets.NetlinkCalls, made: dict[int, int]
) -> None:
    asked = ask(calls, *[1] * 6)
    assert [one.answer for one in asked] == [0] * 4 + [errno.ENOBUFS] * 2
    for one in asked:
        one.is_asleep = False
    made[1] = 3
    assert [one.answer for one in ask(calls, 1, 1)] == [0, errno.ENOBUFS]


def test_a_network_with_many_takes_none_from_another(calls: sockets.NetlinkCalls, made: dict[int, int]) -> None:
    made[1] = 4
    assert [one.answer for one in ask(calls, 1, 2)] == [errno.ENOBUFS, 0]


def test_a_process_that_is_gone_gets_no_socket(calls: sockets.NetlinkCalls) -> None:
    assert [one.answer for one in ask(calls, -1)] == [errno.ENOBUFS]  # there is no /proc/-1


@pytest.mark.parametrize(("each", "most"), [(MIB, 16), (16 * MIB, 4), (64 * MIB, 1), (65 * MIB, 0)])
def test_the_larger_one_may_be_the_fewer_there_are(
    monkeypatch: pytest.MonkeyPatch, made: dict[int, int], each: int, most: int
) -> None:
    monkeypatch.setattr(kernel, "install_notifying_filter", lambda _: 7)
    monkeypatch.setattr(sockets, "_most_waiting", lambda: each)
    assert [one.answer for one in ask(sockets.NetlinkCalls(), *[1] * 17)].count(0) == most


def test_what_can_wait_in_one_is_a_full_buffer_and_one_more_message() -> None:
    with socket.socket(16, socket.SOCK_RAW, 0) as one:
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            one.setsockopt(socket.SOL_SOCKET, buffer, 1 << 30)
        sizes = [one.getsockopt(socket.SOL_SOCKET, buffer) for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert sockets._most_waiting() >= sum(sizes)


def test_where_nobody_can_be_asked_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[bytes] = []

    def refuse(_: bytes) -> int:
        raise OSError(errno.EBUSY, "another filter asks already")

    monkeypatch.setattr(kernel, "install_notifying_filter", refuse)
    monkeypatch.setattr(kernel, "install_filter", installed.append)
    assert sockets.NetlinkCalls().listener == -1
    assert len(installed) == 1
