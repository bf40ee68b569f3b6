"""Turns of all namespaces and callers of a service: shared alike, each accounted for, and no memory kept of them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from casemate import QueueFull, Sandbox
from casemate.audit.log import AuditLog
from casemate.model.operation import Audience, Principal, called_by
from casemate.surfaces.http.service import Service, Terms

USER = Principal("user", Audience.OPERATOR)
TASKS = [  # fifty, of two namespaces and three callers: the narrow ones could do with all turns, too
    *[("wide", Principal(f"a/{n}", Audience.AGENT, account="a")) for n in range(30)],
    *[("wide", Principal(f"b/{n}", Audience.AGENT, account="b")) for n in range(8)],
    *[("narrow", USER)] * 12,
]
_LEAST_TIME, _EACH_IN = 110, 0.1  # seconds, and for each run, on a machine that does much else
_MOST_GROWN = 16 << 20  # bytes: the ids of ten thousand runs are kept, and little else


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def endure(folder: Path, total: int) -> tuple[Counter[tuple[str, str]], int]:
    """Whose the first ``total`` turns were, and by how many bytes this process has grown since the first tenth."""
    record = folder / "audit.db"
    service = Service(folder, lambda name: Sandbox(audit=record, namespace=name, concurrency=8), Terms())
    sandboxes = {name: (await service.operations(name)).sandbox for name in ("wide", "narrow")}
    numbers, ended, sizes = itertools.count(), list[tuple[str, str]](), list[int]()

    async def takes(namespace: str, principal: Principal) -> None:
        with called_by(principal):
            while (number := next(numbers)) < total + len(TASKS):  # so that somebody waits to the end
                execution = await sandboxes[namespace].run(f"echo $(({number} * 2))", language="shell")
                assert (execution.status, execution.stdout) == ("ok", f"{number * 2}\n")
                ended.append((namespace, principal.account))
                if len(ended) in (total // 10, total):
                    sizes.append(resident())

    try:
        async with asyncio.TaskGroup() as group:
            for task in TASKS:
                group.create_task(takes(*task))
        counted = [(await one.stats()).totals.by_status for one in sandboxes.values()]
        assert counted[0] == {"ok": sum(name == "wide" for name, _ in ended)}
        assert sum(one["ok"] for one in counted) == len(ended) == total + len(TASKS)
        assert (await sandboxes["wide"].audit.verify()).ok
    finally:
        await service.close()
    rows = Counter((row.kind, row.namespace) for row in AuditLog(record).tail(4 * len(ended)))
    assert rows["intent", "wide"] + rows["intent", "narrow"] == len(ended)
    assert rows["outcome", "wide"] + rows["outcome", "narrow"] == len(ended)
    return Counter(ended[:total]), sizes[1] - sizes[0]


@pytest.mark.full
@pytest.mark.parametrize("total", [pytest.param(10_000, marks=pytest.mark.full), 400])
def test_turns_are_shared_alike_by_two_namespaces_and_their_callers(total: int, tmp_path: Path) -> None:
    signal.alarm(_LEAST_TIME + int(total * _EACH_IN))  # in place of the limit that other tests have
    shares, grown = asyncio.run(endure(tmp_path, total))
    assert shares["narrow", ""] == pytest.approx(total / 2, rel=0.1)
    assert shares["wide", "a"] == pytest.approx(total / 4, rel=0.1)
    assert shares["wide", "b"] == pytest.approx(total / 4, rel=0.1)
    assert grown < _MOST_GROWN


async def test_namespaces_have_so_many_turns_together(tmp_path: Path) -> None:
    service = Service(tmp_path, lambda name: Sandbox(audit=tmp_path / "a", namespace=name, concurrency=1), Terms())
    try:
        one, two = [(await service.operations(name)).sandbox for name in ("one", "two")]
        async with asyncio.TaskGroup() as group:
            holds = group.create_task(one.run("sleep 600", language="shell"))
            while not (await one.stats()).running:
                await asyncio.sleep(0.01)
            with pytest.raises(QueueFull, match="all 1 turns are taken") as raised:
                await two.run("print(1)", start_within=0.05)
            assert raised.value.missing == "turns"
            assert ((await one.stats()).running, (await two.stats()).running) == (1, 0)
            holds.cancel()
        assert (await two.run("print(1)", start_within=20)).text == "1"
    finally:
        await service.close()
