"""What a kept proof of the self-test depends on."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from casemate.walls.native import selftest
from casemate.walls.native.selftest import Bench

SOURCES = ("supervisor/init.py", "guest/selftest.py", "walls/docker/wall.py", "walls/registry.py")


@pytest.mark.parametrize("changed", SOURCES)
def test_a_changed_source_of_what_makes_cells_has_walls_proved_again(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SOURCES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(selftest, "__file__", str(tmp_path / "walls" / "native" / "selftest.py"))
    wall: Any = SimpleNamespace(name="native")
    bench = Bench(wall, {}, Mock(), leaves_own_files=False, without=frozenset())
    before = selftest._key(bench)
    assert selftest._key(bench) == before
    stamp = os.stat(tmp_path / changed).st_mtime_ns + 10**9
    os.utime(tmp_path / changed, ns=(stamp, stamp))
    assert selftest._key(bench) != before
