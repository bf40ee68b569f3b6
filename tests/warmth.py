"""Makes every run start its cell by exec, or take a ready cell from a pool wherever possible."""

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
from tests.support import containers

from casemate.execution import pipeline
from casemate.model.plan import Plan, ReadyStart
from casemate.walls.native.pool import Pools

STARTS = ("exec", "warm")
_MAX_WAIT = 60.0  # seconds until a zygote must be ready, also under heavy load
_PAUSE = 0.002
_SUPERVISORS = (b"casemate-supervisor", containers.SUPERVISOR)


@contextlib.contextmanager
def starting(how: str) -> Iterator[None]:
    """A context in which every cell starts as ``how`` says, "exec" or "warm"."""
    with _by_exec() if how == "exec" else _warm():
        yield


@contextlib.contextmanager
def _by_exec() -> Iterator[None]:
    def cold_plan(*arguments: Any, **more: Any) -> Plan:
        return replace(real(*arguments, **more), waiting="this test wants it so")

    real = pipeline.make_plan  # type: ignore[attr-defined]
    with mock.patch.object(pipeline, "make_plan", cold_plan):
        yield


@contextlib.contextmanager
def _warm() -> Iterator[None]:
    """Waits for zygotes and for ready cells instead of falling back to exec."""

    def take(pools: Pools, plan: Plan, waiting: ReadyStart, root: str) -> Any:
        pools.start(plan, waiting, root)
        deadline = time.monotonic() + _MAX_WAIT
        while True:
            cell, why, end = real(pools, plan, waiting, root)
            if cell is not None or not ("is not ready yet" in why or "no cell" in why):
                return cell, why, end
            end()
            assert time.monotonic() < deadline, why
            time.sleep(_PAUSE)

    real = Pools.take
    with mock.patch.object(Pools, "take", take):
        yield


def runs_a_program(pid: int) -> bool:
    """Whether ``pid`` is a live process of a program in a cell: not casemate's own, and not a waiting interpreter.

    It checks last that the process lives: if the process ends meanwhile, as an init does after its program, the other
    answers are unreliable.
    """
    return not is_casemates_own(pid) and not waits(pid) and _lives(pid)


def waits(pid: int) -> bool:
    """Whether ``pid`` is an interpreter that waits in a cell for its program, or is about to wait.

    An ancestor of such a process, the host, holds the other end of its descriptor 6.
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
    """The open files of ``pid``. Empty for a process that may not be inspected, such as an init."""
    links = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    return links


def is_casemates_own(pid: int) -> bool:
    """Whether ``pid`` is a supervisor, a zygote or a cell's init, by its name. Also true of a zygote before it sets its
    name, and of a zygote's child: preloading matplotlib runs a program that lists fonts."""
    with contextlib.suppress(OSError):
        parent = next(_ancestors(pid), 0)
        named = is_init(pid) or "casemate-zygote" in (_name(pid), _name(parent)) or _is_supervisor(pid)
        return named or os.readlink(f"/proc/{pid}/fd/0").startswith("/memfd:casemate-no-input")
    return False


def _is_supervisor(pid: int) -> bool:
    command = _command(pid)
    return any(name in command for name in _SUPERVISORS)


def is_init(pid: int) -> bool:
    """Whether ``pid`` is the first process of a cell, by its name."""
    with contextlib.suppress(OSError):
        return _name(pid) == "casemate-init"
    return False


def _lives(pid: int) -> bool:
    """Whether ``pid`` has not ended and is not exiting. An exiting process has no memory, so no command line."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text()
        return status[status.rindex(")") + 2] not in "ZX" and _command(pid) != b""
    return False


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.fixture(scope="module", params=STARTS, autouse=True)
def start(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test twice: with cells started by exec, and with warm cells."""
    with starting(request.param):
        yield request.param
