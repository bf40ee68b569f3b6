"""A person at the console and a program that wants out, in the tests' own internet."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.console.browser import chromium, signed_in
from tests.console.conftest import link_of
from tests.network.test_refused import new_visits
from tests.network.visits import World
from tests.service.daemon import environment, serving

pytestmark = [pytest.mark.needs("browser"), pytest.mark.needs("playwright")]

PROGRAM = "import urllib.request\nprint(urllib.request.urlopen('http://good.test/wanted').read().decode())"


def test_a_person_approves_a_host_while_a_program_waits(world: World, tmp_path: Path) -> None:
    before = world.visits()
    with serving(environment(tmp_path)) as daemon, chromium() as browser, signed_in(browser, link_of(daemon)) as page:
        page.get_by_role("link", name="Runs and sessions").click()
        page.get_by_role("button", name="Start a run").click()
        page.get_by_label("Program").fill(PROGRAM)
        page.get_by_role("dialog").get_by_role("button", name="Start", exact=True).click()
        card = page.get_by_role("article")
        card.wait_for()
        assert "connect to good.test, port 80" in card.inner_text()
        assert new_visits(world, before) == []
        card.get_by_role("button", name="Allow", exact=True).click()
        page.get_by_text("hello from GET /wanted").wait_for()
        page.locator(".timeline").get_by_text("good.test:80 allowed").wait_for()
        assert new_visits(world, before) != []
