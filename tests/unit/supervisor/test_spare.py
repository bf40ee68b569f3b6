"""A cell's first process that never says that it has prepared itself."""

from __future__ import annotations

import socket
from unittest import mock

import pytest

from casemate.supervisor import spare, wire


def test_a_spare_that_says_nothing_is_waited_for_no_longer_than_that() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, mock.patch.object(wire, "ANSWER_WITHIN", 10):
        made = spare.Spare.__new__(spare.Spare)
        made.channel, made._namespaces = ours, []
        with pytest.raises(OSError, match="in time"):
            made.wait_prepared()
