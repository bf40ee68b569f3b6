"""What is ready among descriptors that epoll takes, and ones that it does not: real pipes, and a file."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from casemate.supervisor.readiness import DescriptorPoll

FILE = "/dev/null"  # which the kernel takes to be always ready, and epoll refuses (epoll_ctl(2), EPERM)


@pytest.fixture
def poll() -> Iterator[DescriptorPoll]:
    poll = DescriptorPoll()
    yield poll
    poll.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.open(FILE, os.O_RDWR)
    yield fd
    os.close(fd)


def test_both_kinds_are_told_together(poll: DescriptorPoll, pipe: tuple[int, int], file: int) -> None:
    poll.register(pipe[0], select.POLLIN)
    assert poll.wait(0) == []
    poll.register(file, select.POLLIN)
    assert poll.wait(None) == [(file, select.POLLIN)]
    os.write(pipe[1], b"x")
    assert sorted(poll.wait(None)) == sorted([(file, select.POLLIN), (pipe[0], select.POLLIN)])


def test_a_pipe_is_told_beside_a_file_that_is_not_ready(poll: DescriptorPoll, pipe: tuple[int, int], file: int) -> None:
    poll.register(file, select.POLLPRI)
    poll.register(pipe[1], select.POLLOUT)
    assert poll.wait(None) == [(pipe[1], select.POLLOUT)]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_the_last_that_was_asked_for_counts(poll: DescriptorPoll, pipe: tuple[int, int], file: int, kind: str) -> None:
    fd = pipe[1] if kind == "pipe" else file
    poll.register(fd, select.POLLIN | select.POLLPRI)
    poll.register(fd, select.POLLOUT)
    assert poll.wait(None) == [(fd, select.POLLOUT)]
    poll.unregister(fd)
    assert poll.wait(0) == []
