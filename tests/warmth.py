"""Runs whose cells are all started by exec, or all of which may be are begun in a cell that is warm."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from casemate.execution import pipeline
from casemate.isolation.native.warm import Warm
from casemate.model.plan import Plan, Waiting

STARTS = ("exec", "warm")
_PATIENCE = 60.0  # seconds a zygote has to be ready, on a machine under heavy load
_PAUSE = 0.002


@contextlib.contextmanager
def starting(how: str) -> Iterator[None]:
    """Have every cell started so meanwhile."""
    with _by_exec() if how == "exec" else _warm():
        yield


@contextlib.contextmanager
def _by_exec() -> Iterator[None]:
    def cold_plan(*arguments: Any) -> Plan:
        return replace(real(*arguments), waiting="this test wants it so")

    real = pipeline.make_plan  # type: ignore[attr-defined]
    with mock.patch.object(pipeline, "make_plan", cold_plan):
        yield


@contextlib.contextmanager
def _warm() -> Iterator[None]:
    """Waits for zygotes, and has a ready cell made where there is none."""

    def take(warm: Warm, plan: Plan, waiting: Waiting, root: str) -> Any:
        warm.start(plan, waiting, root)
        deadline = time.monotonic() + _PATIENCE
        while (turn := real(warm, plan, waiting, root)).cell is None:
            if "is not ready yet" not in turn.why and "no cell" not in turn.why:
                break
            turn.end()
            assert time.monotonic() < deadline, turn.why
            time.sleep(_PAUSE)
        return turn

    real = Warm.take
    with mock.patch.object(Warm, "take", take):
        yield


def waits(pid: int) -> bool:
    """Whether ``pid`` is an interpreter that waits in a cell for its program, or is about to.

    The host, which it descends from, then holds the other end of its descriptor 6.
    """
    with contextlib.suppress(OSError, ValueError):
        pipe = os.readlink(f"/proc/{pid}/fd/6")
        return pipe.startswith("pipe:") and any(pipe in _open(ancestor) for ancestor in _ancestors(pid))
    return False


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        status = Path(f"/proc/{pid}/stat").read_text()
        pid = int(status[status.rindex(")") + 2 :].split()[1])
        yield pid


def _open(pid: int) -> set[str]:
    """What ``pid`` has open; nothing of a process that may not be looked at, such as an init."""
    links = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    return links


def is_casemates_own(pid: int) -> bool:
    """Whether ``pid`` is a zygote or the init of a cell, by the name that it gives itself; or a zygote that has not
    come to that yet, or what one runs: matplotlib asks for fonts when it is preloaded."""
    with contextlib.suppress(OSError):
        parent = next(_ancestors(pid), 0)
        named = _name(pid) in ("casemate-init", "casemate-zygote") or _name(parent) == "casemate-zygote"
        return named or os.readlink(f"/proc/{pid}/fd/0").startswith("/memfd:casemate-no-input")
    return False


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.fixture(scope="module", params=STARTS, autouse=True)
def start(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test twice: in cells started by exec, and in warm ones."""
    with starting(request.param):
        yield request.param
