"""Modules that are loaded ahead are named as texts, which no tool follows when one is called otherwise."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from casemate.execution import run


@pytest.mark.parametrize("name", [*run._ALWAYS, *run._WITH_FILES])
def test_what_is_loaded_ahead_is_there(name: str) -> None:
    assert find_spec(name) is not None
