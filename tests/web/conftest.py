"""A site, and browsers that may go there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.coroutines import runner
from tests.web.site import Site, serving

from casemate import Sandbox
from casemate.web.browser import Browsers
from casemate.web.tab import Rendered

__all__ = ["runner"]


class Browsing:
    """Browsers of a sandbox, asked with the usual arguments."""

    def __init__(self, sandbox: Sandbox, site: Site) -> None:
        self.sandbox, self.site = sandbox, site
        self.browsers = Browsers(lambda: sandbox._context, sandbox.namespace)

    async def __call__(self, place: str, **arguments: Any) -> Rendered:
        """Browse a path of the site, or an address."""
        usual = {"wait_for_selector": None, "wait_until": "load", "timeout": 60.0, "screenshot": False}
        url = f"{self.site.address}{place}" if place.startswith("/") else place
        return await self.browsers.browse(url, **{**usual, **arguments})


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as made:
        yield made


@pytest.fixture
def browse(runner: asyncio.Runner, site: Site, audit: Path) -> Iterator[Browsing]:
    sandbox = Sandbox(allow_local=[site.port], audit=audit)
    made = Browsing(sandbox, site)
    yield made
    runner.run(made.browsers.close())
    runner.run(sandbox.close())
