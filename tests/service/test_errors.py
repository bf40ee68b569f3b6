"""Errors of a service as its clients have them: what is raised there is raised here, of every class, over real HTTP."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casemate import Sandbox, errors
from casemate.errors import CasemateError, ExecutionFailed
from casemate.model.operation import Audience, Principal
from casemate.remote.client import connect
from casemate.surfaces.http.app import HttpApplication
from casemate.surfaces.http.identity import Admitted, Listener, hosts_of
from casemate.surfaces.http.server import Server, listen
from casemate.surfaces.http.service import Service, Terms

PUBLIC = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CasemateError)]
USER = Principal("token:somebody", Audience.OPERATOR, "default", True)


def made(kind: type[CasemateError]) -> CasemateError:
    named = inspect.signature(kind).parameters
    given: dict[str, Any] = {name: 7.25 if name == "retry_after" else f"{name}: words" for name in named}
    return kind(**given)


def raising(error: CasemateError) -> Callable[[str], Sandbox]:
    def make_sandbox(_namespace: str) -> Sandbox:
        raise error

    return make_sandbox


@pytest.mark.parametrize("kind", [one for one in PUBLIC if one is not ExecutionFailed])
async def test_what_a_service_raises_is_raised_by_its_clients_with_all_that_it_names(
    kind: type[CasemateError], tmp_path: Path
) -> None:
    before = made(kind)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    service = Service(tmp_path, raising(before), Terms())
    where = Listener("tcp", hosts_of([("127.0.0.1", port)], (), tls=False))
    server = Server(HttpApplication(service, where, Admitted(lambda texts: dict.fromkeys(texts, USER)), {}), listening)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.until_ended())
        remote = await connect(f"http://127.0.0.1:{port}", "token")

        async def asked() -> Any:
            return await remote("runs.list")

        async def streamed() -> Any:
            return [one async for one in remote.stream("runs.stream", {"run": "x"})]

        async def blocked() -> Any:
            return await asyncio.to_thread(remote.call_blocking, "runs.list", {})

        try:
            for way in (asked, streamed, blocked):
                with pytest.raises(CasemateError) as caught:
                    await way()
                assert type(caught.value) is kind, way
                assert vars(caught.value) == vars(before), way
        finally:
            await remote.close()
            await service.close()
            server.end()
            await asyncio.wait([serving])
