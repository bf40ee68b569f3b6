"""Finds a container engine with casemate's image."""

from __future__ import annotations

import os

import pytest

from casemate.errors import WallUnavailable
from casemate.walls.docker import engine, refusal
from casemate.walls.docker.containers import ContainerTerms


def skip_without_engine(runtime: str = "") -> engine.Engine:
    """The engine. Without one, skips and says what is missing."""
    try:
        found = engine.find(os.environ)
        refusal.check(found, ContainerTerms("casemate", runtime))
    except WallUnavailable as error:
        pytest.skip(f"{error.message} {error.remediation}")
    return found
