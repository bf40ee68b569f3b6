"""Results in the Chromium that people have, which sends other headers than the headless shell of the other files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.browser import FULL, Chromium, chromium
from tests.console.test_escapes import (
    seeded,
    seen,
    test_a_session_shows_what_a_hostile_program_gave_and_nothing_happens,
    test_even_code_in_the_frame_reaches_neither_the_service_nor_the_page_nor_the_network,
)
from tests.console.test_pages import test_what_a_program_gives_as_html_is_seen_as_high_as_it_is_and_does_nothing

__all__ = [
    "seeded",
    "seen",
    "test_a_session_shows_what_a_hostile_program_gave_and_nothing_happens",
    "test_even_code_in_the_frame_reaches_neither_the_service_nor_the_page_nor_the_network",
    "test_what_a_program_gives_as_html_is_seen_as_high_as_it_is_and_does_nothing",
]

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.needs("playwright")]


@pytest.fixture(scope="module")
def real_browser() -> Iterator[Chromium]:
    """That one, for the tests that are taken from other files."""
    with chromium(FULL) as one:
        yield one
