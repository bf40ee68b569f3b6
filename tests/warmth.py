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
_READ = {"x86_64": 0, "aarch64": 63}  # number of read(2)


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
        while (taken := real(warm, plan, waiting, root)) and isinstance(taken, str):
            warm.ended(plan, waiting, root)
            if "not ready yet" not in taken and "no cell" not in taken:
                return taken
            assert time.monotonic() < deadline, taken
            time.sleep(_PAUSE)
        return taken

    real = Warm.take
    with mock.patch.object(Warm, "take", take):
        yield


def waits(pid: int) -> bool:
    """Whether ``pid`` is an interpreter that waits in a cell for its program: it reads from descriptor 6."""
    with contextlib.suppress(OSError, ValueError):
        called, first, *_ = Path(f"/proc/{pid}/syscall").read_text().split()
        if (int(called), int(first, 16)) == (_READ[os.uname().machine], 6):
            return b"/program/main." in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def is_casemates_own(pid: int) -> bool:
    """Whether ``pid`` is a zygote or the init of a cell, by the name that it gives itself."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("casemate-init", "casemate-zygote")
    return False


@pytest.fixture(scope="module", params=STARTS, autouse=True)
def start(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test twice: in cells started by exec, and in warm ones."""
    with starting(request.param):
        yield request.param
