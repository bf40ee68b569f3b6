"""One table is put into a TOML file of another program or taken out of it, in whatever form its neighbours are."""

from __future__ import annotations

import tomllib

import pytest

from casemate.surfaces.clients.editing import MalformedSettings, with_table, without_table

ENTRY = {"command": "a b", "args": ["x", 'é"']}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a = 1\n# mine\n",
        "[servers.other]\ncommand='x'\n\n[z]\nq=1 # mine\n",
        "[servers.b]\nx=1\n[z]\nq=1\n",
        "a=1\r\n[servers.b]\r\nx=1\r\n",
        "[servers]\nb={command='r'}\n",
    ],
)
def test_a_table_comes_and_goes_and_the_rest_stays(text: str) -> None:
    changed = with_table(text, "servers", "casemate", ENTRY)
    assert changed.startswith(text)
    assert tomllib.loads(changed)["servers"]["casemate"] == ENTRY
    assert without_table(changed, "servers", "casemate").strip() == text.strip()


@pytest.mark.parametrize(
    "text", ["servers.casemate.command='x'\n[k]\nz=1\n", "[servers]\ncasemate={command='q'}\n[k]\nz=1\n"]
)
def test_an_entry_written_in_another_form_is_replaced(text: str) -> None:
    changed = with_table(text, "servers", "casemate", ENTRY)
    assert tomllib.loads(changed) == {"servers": {"casemate": ENTRY}, "k": {"z": 1}}


def test_what_cannot_be_changed_safely_is_left_alone() -> None:
    with pytest.raises(MalformedSettings, match="by hand"):
        with_table("servers={b={x=1}}\n", "servers", "casemate", ENTRY)
