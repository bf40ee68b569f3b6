"""docs/start/clients.md names the places that casemate writes to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from casemate.surfaces.clients.known import CLIENTS, Client, file_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "start" / "clients.md").read_text(encoding="utf-8")
ROWS = {
    row[1].strip("`"): row
    for row in (re.split(r"\s*\|\s*", line.strip("| \n")) for line in PAGE.splitlines())
    if len(row) == 5
}


def test_every_client_has_its_row() -> None:
    assert {*ROWS} - {"name", "---"} == {*CLIENTS}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=str)
def test_a_row_says_what_is_written_and_where(client: Client) -> None:
    title, _, user, project, key = ROWS[client.name]
    assert (title, key) == (client.title, f"`{client.key}`")
    assert f"`{file_of(client, 'user', {'HOME': '/h'}, '/p').replace('/h/', '~/', 1)}`" in user
    assert project == (f"`{client.project}`" if client.project else "none")
