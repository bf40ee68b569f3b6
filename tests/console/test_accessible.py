"""The console for everybody: axe finds nothing, in light and dark, and the keyboard reaches all that can be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from tests.console.browser import Chromium
from tests.console.browser import signed_in as signed_in_console
from tests.console.conftest import link_of
from tests.console.seeds import PLACES, Seeds, seed, seeded_service
from tests.service.daemon import Daemon

pytestmark = [
    pytest.mark.needs("browser"), pytest.mark.needs("playwright"), pytest.mark.needs("axe_playwright_python"),
]  # fmt: skip

REACHABLE = """() => [...document.querySelectorAll(
  'a[href], button, input, select, textarea, summary, [tabindex="0"]'
)].filter((one) => !one.disabled && one.checkVisibility()
  && !one.closest('details:not([open]) > :not(summary)')).length"""
MARK = """() => { const one = document.activeElement;
if (one === document.body || one.dataset.met) return false;
one.dataset.met = '1'; return true; }"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with seeded_service() as one:
        yield one


@pytest.fixture(scope="module")
def seeds(daemon: Daemon) -> Seeds:
    return seed(daemon)


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    real_browser: Chromium, daemon: Daemon, seeds: Seeds, scheme: Literal["dark", "light"]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = {}
    with signed_in_console(real_browser, link_of(daemon)) as page:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for name, place in PLACES.items():
            place.show(page, seeds)
            violations = Axe().run(page).response["violations"]
            found[name] = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in violations]
    assert {name: one for name, one in found.items() if one} == {}


@pytest.mark.full
def test_the_keyboard_reaches_everything(real_browser: Chromium, daemon: Daemon, seeds: Seeds) -> None:
    with signed_in_console(real_browser, link_of(daemon)) as page:
        for name, place in PLACES.items():
            place.show(page, seeds)
            expected = page.evaluate(REACHABLE)
            page.evaluate("for (const one of document.querySelectorAll('[data-met]')) delete one.dataset.met")
            page.evaluate("document.activeElement.blur()")
            met = 0
            for _ in range(expected + 20):  # a field for a time takes several
                page.keyboard.press("Tab")
                met += page.evaluate(MARK)
            assert met >= expected, name


@pytest.mark.full
def test_axe_notices_what_nobody_could_read(real_browser: Chromium) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = real_browser.new_page()
    page.set_content("<html><body><img src='data:,x'><p style='color:#aaa;background:#fff'>pale</p><button></button>")
    assert {"button-name", "color-contrast", "image-alt"} <= {
        one["id"] for one in Axe().run(page).response["violations"]
    }
    page.close()
