"""The table of what enforces each setting names every setting, and functions that are there."""

from __future__ import annotations

import functools
import importlib

import pytest

from casemate.model.limits import LIMIT_BOUNDS
from casemate.policy.enforcement import ENFORCED
from casemate.policy.keys import PolicyKeys
from casemate.walls.registry import WALLS


def test_every_setting_has_a_function_that_enforces_it() -> None:
    limits = {f"limits.{name}" for name in LIMIT_BOUNDS}
    filesystem = {f"filesystem.{name}" for name in ("denyRead", "denyWrite", "allowWrite")}
    assert {*ENFORCED} == {*PolicyKeys.model_fields} - {"limits"} | limits | filesystem


@pytest.mark.parametrize("setting", ENFORCED)
def test_what_enforces_a_setting_is_there(setting: str) -> None:
    module, _, name = ENFORCED[setting].by.partition(":")
    assert callable(functools.reduce(getattr, name.split("."), importlib.import_module(f"casemate.{module}")))
    assert {*ENFORCED[setting].walls} <= {*WALLS}
