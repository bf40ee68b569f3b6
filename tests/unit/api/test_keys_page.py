"""docs/reference/configuration.md says what the table says, and its example is a file that can be used."""

from __future__ import annotations

from pathlib import Path

from casemate.api.settings import settings_in_file

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "reference" / "configuration.md"


def test_the_example_on_the_page_is_a_file_that_is_sound() -> None:
    example = ROOT / "examples" / "casemate.yaml"
    assert f"```yaml\n{example.read_text(encoding='utf-8')}```\n" in PAGE.read_text(encoding="utf-8")
    found = settings_in_file(example)
    values = {key.name: one.value for key, one in found.in_force()}
    assert (values["limits.wall"], values["timeout"], values["service.idle_stop"]) == (300, 120, 3600)
