"""The languages for parametrized tests."""

from __future__ import annotations

import pytest

LANGUAGES = (pytest.param("python"), pytest.param("node", marks=pytest.mark.needs("node")), pytest.param("shell"))
every_language = pytest.mark.parametrize("language", LANGUAGES)
