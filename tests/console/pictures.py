"""The pictures of the console in docs/pictures: ``python -m tests.console.pictures``. It needs Chromium and Pillow."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Literal

from tests.console.browser import chromium, signed_in
from tests.console.conftest import link_of
from tests.console.seeds import PLACES, seed, seeded_service

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SHOWN: dict[str, Literal["dark", "light"]] = {
    "approvals": "light", "session": "light", "crossings": "dark", "record": "light", "health": "dark",
}  # fmt: skip
_COLOURS = 128  # of a picture: a page has few
_MOST = 150_000  # bytes of one


def smaller(picture: bytes) -> bytes:
    """The same PNG with a palette."""
    from PIL import Image

    made = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(_COLOURS).save(made, "PNG", optimize=True)
    return made.getvalue()


def main() -> int:
    """Take all of them."""
    FOLDER.mkdir(exist_ok=True)
    with seeded_service() as daemon, chromium() as browser:
        seeds = seed(daemon)
        with signed_in(browser, link_of(daemon), width=1200) as page:
            for name, scheme in SHOWN.items():
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                PLACES[name].show(page, seeds)
                page.locator(".said.shown").wait_for(state="detached")
                bottom = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
                height = min(900, bottom + 16)
                picture = smaller(page.screenshot(clip={"x": 0, "y": 0, "width": 1200, "height": height}))
                assert len(picture) <= _MOST, (name, len(picture))
                (FOLDER / f"console-{name}.png").write_bytes(picture)
                print(f"docs/pictures/console-{name}.png, {len(picture):,} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
