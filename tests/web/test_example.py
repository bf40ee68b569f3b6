"""docs/how-to/web.md says what is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from casemate import Sandbox

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "web.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_page_shows_the_example_and_what_it_prints(tmp_path: Path) -> None:
    example = ROOT / "examples" / "web.py"
    done = subprocess.run(
        [sys.executable, example], env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert f"```python\n{example.read_text(encoding='utf-8')}```\n\n```\n{done.stdout}```\n" in PAGE, done.stderr


def test_the_policy_that_the_page_shows_is_one(audit: Path) -> None:
    (shown,) = re.findall(r"```yaml(?: fragment)?\n(.*?)```\n", PAGE, re.DOTALL)
    Sandbox(audit=audit, policy=yaml.safe_load(shown))


def test_every_reason_is_named() -> None:
    guests = (ROOT / "src" / "casemate" / "guest" / "python").glob("web*.py")
    hosts = (ROOT / "src" / "casemate" / "web").glob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in (*guests, *hosts))
    reasons = {*re.findall(r'PageProblem\(\s*"(\w+)"', source), *re.findall(r'reason="(\w+)"', source)}
    assert len(reasons) > 9
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in PAGE] == []
