"""The table of what enforces each setting names every setting, and functions that exist."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

from casemate.model.isolation import WALLS
from casemate.model.limits import LIMIT_BOUNDS
from casemate.policy.keys import POLICY_KINDS

TABLE = Path(__file__).parents[3].joinpath("docs/reference/settings.md").read_text().partition("## Settings by")[0]
ENFORCED = {
    setting: (by, {*re.findall(r"(?:^|; )(\w+): ", walls)})
    for setting, by, walls in re.findall(r"^\| `(.+?)` \| `(.+?)` \| .+? \| (.*) \|$", TABLE, re.MULTILINE)
}


def test_every_setting_has_a_function_that_enforces_it() -> None:
    limits = {f"limits.{name}" for name in LIMIT_BOUNDS}
    filesystem = {f"filesystem.{name}" for name in ("denyRead", "denyWrite", "allowWrite")}
    assert {*ENFORCED} == {*POLICY_KINDS} - {"limits"} | limits | filesystem


@pytest.mark.parametrize("setting", ENFORCED)
def test_what_enforces_a_setting_is_there(setting: str) -> None:
    by, walls = ENFORCED[setting]
    module, _, name = by.partition(":")
    assert callable(functools.reduce(getattr, name.split("."), importlib.import_module(f"casemate.{module}")))
    assert walls <= {*WALLS}
