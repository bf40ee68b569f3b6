"""docs/start/clients.md names the places that casemate writes to, and its links hold the command that works."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from casemate.surfaces.clients.known import CLIENTS, Client, file_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "start" / "clients.md").read_text(encoding="utf-8")
ROWS = {
    row[1].strip("`"): row
    for row in (re.split(r"\s*\|\s*", line.strip("| \n")) for line in PAGE.splitlines())
    if len(row) == 5
}
LINKS = re.findall(r"\]\((https://[^)]+/install[^)]+)\)", PAGE)


def test_every_client_has_its_row() -> None:
    assert {*ROWS} - {"name", "---"} == {*CLIENTS}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=str)
def test_a_row_says_what_is_written_and_where(client: Client) -> None:
    title, _, user, project, key = ROWS[client.name]
    assert (title, key) == (client.title, f"`{client.key}`")
    assert f"`{file_of(client, 'user', {'HOME': '/h'}, '/p').replace('/h/', '~/', 1)}`" in user
    assert project == (f"`{client.project}`" if client.project else "none")


@pytest.mark.parametrize("link", LINKS)
def test_a_link_installs_what_uvx_starts(link: str) -> None:
    given = parse_qs(urlsplit(link).query, strict_parsing=True)
    config = given["config"][0]
    entry = json.loads(config if config.startswith("{") else base64.b64decode(config, validate=True))
    assert (given["name"], entry) == (["casemate"], {"command": "uvx", "args": ["casemate", "serve"]})


def test_there_is_a_link_for_both() -> None:
    assert [urlsplit(link).hostname for link in LINKS] == ["insiders.vscode.dev", "cursor.com"]
