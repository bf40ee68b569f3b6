"""Servers in sessions of a service, shown by an operator: by the command line, by the library, never by an agent."""

from __future__ import annotations

import json

import httpx
import pytest
from tests.service.daemon import Daemon
from tests.sessions.previewing import SITE, client, name_of, visitor

from casemate import Denied, sync
from casemate.model.preview import Preview
from casemate.remote.facade import ConnectedSandbox


async def answer_to(url: str) -> httpx.Response:
    async with await visitor(Preview("", 8000, url, "", None)) as person:
        return await person.get("/")


async def test_the_command_line_shows_a_server_lists_it_and_takes_it_back(shared: Daemon) -> None:
    async with ConnectedSandbox(await shared.connect()) as sandbox, sandbox.session(name="site") as session:
        (await session.run(SITE)).raise_for_status()
        url = shared.command("expose", "site", "8000", "--expires", "600").stdout.strip()
        assert (await answer_to(url)).text == "<h1>hello</h1>"
        [listed] = json.loads(shared.command("expose", "--format", "json").stdout)
        assert (listed["session"], listed["port"], listed["url"]) == (session.id, 8000, url.partition("?")[0])
        shared.command("unexpose", "site", "8000")
        with pytest.raises(AssertionError, match="There is no preview"):
            await answer_to(url)


async def test_a_connected_session_is_shown_as_one_of_this_process(shared: Daemon) -> None:
    async with ConnectedSandbox(await shared.connect()) as sandbox, sandbox.session() as session:
        (await session.run(SITE)).raise_for_status()
        preview = await session.expose(8000)
        assert name_of(preview).startswith(f"8000-{session.id}.localhost:")
        assert (await answer_to(preview.url)).text == "<h1>hello</h1>"
        assert [one.port for one in await session.previews()] == [8000]
        async with client(preview) as stranger:
            assert (await stranger.get("/")).status_code == 401
        await session.unexpose(8000)
        assert await session.previews() == []


async def test_an_agent_shows_nothing(shared: Daemon) -> None:
    async with ConnectedSandbox(await shared.connect(agent="helper")) as sandbox, sandbox.session() as session:
        with pytest.raises(Denied, match="expose is only for operators"):
            await session.expose(8000)


def test_a_script_shows_a_server_without_await(tmp_path_factory: pytest.TempPathFactory) -> None:
    audit = tmp_path_factory.mktemp("audit") / "audit.db"
    with sync.Sandbox(audit=audit, preload=()) as sandbox, sandbox.session() as session:
        session.run(SITE).raise_for_status()
        preview = session.expose(8000)
        link = preview.url.replace(name_of(preview).rpartition(":")[0], "127.0.0.1")
        answer = httpx.get(link, headers={"host": name_of(preview)})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert [one.port for one in session.previews()] == [8000]
        session.unexpose(8000)
