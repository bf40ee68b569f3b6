"""What every test of operations has: an event loop, a sandbox and operations per file, and callers of several kinds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.coroutines import runner

from casemate import Limits, Sandbox
from casemate.model.operation import Audience, Principal
from casemate.operations.catalogue import catalogue
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations

__all__ = ["runner"]

AGENT = Principal("first", Audience.AGENT)
OTHER = Principal("second", Audience.AGENT)
APPROVER = Principal("third", Audience.AGENT, may_approve=True)
OPERATOR = Principal("user", Audience.OPERATOR, may_run_commands=True)  # as over the Unix socket


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the record of a file's sandbox lies."""
    return tmp_path_factory.mktemp("audit") / "audit.db"


@pytest.fixture(scope="module")
def policy() -> dict[str, Any] | None:
    """That of a file's sandbox."""
    return None


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner, audit: Path, policy: dict[str, Any] | None) -> Iterator[Sandbox]:
    """One for all tests of a file."""
    one = Sandbox(audit=audit, limits=Limits(wall=300, memory="1GiB"), policy=policy)
    try:
        yield one
    finally:
        runner.run(one.close())


@pytest.fixture(scope="module")
def operations(runner: asyncio.Runner, sandbox: Sandbox) -> Iterator[Operations]:
    """One for all tests of a file."""

    async def opened() -> Operations:
        return await Operations(sandbox).load()

    one = runner.run(opened())
    try:
        yield one
    finally:
        runner.run(one.close())


class Checked:
    """Calls as another does, and looks whether each answer is JSON, and as its schema says."""

    def __init__(self, invoke: Invoke) -> None:
        self._invoke = invoke

    async def __call__(self, operation: str, arguments: Mapping[str, Any] | None = None) -> Any:
        value = await self._invoke(operation, arguments or {})
        _check(operation, value)
        return value

    async def stream(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, cursor: int | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        async with contextlib.aclosing(self._invoke.stream(operation, arguments or {}, cursor=cursor)) as events:
            async for event in events:
                _check(operation, event)
                yield event


@cache
def _validator(operation: str) -> Any:
    schema = catalogue()[operation].result_schema()
    return jsonschema_rs.Draft202012Validator(schema)


def _check(operation: str, value: Any) -> None:
    json.dumps(value, allow_nan=False).encode("ascii")
    _validator(operation).validate(value)


@pytest.fixture
def agent(operations: Operations) -> Invoke:
    return Checked(local(operations, AGENT))


@pytest.fixture
def other(operations: Operations) -> Invoke:
    return Checked(local(operations, OTHER))


@pytest.fixture
def operator(operations: Operations) -> Invoke:
    return Checked(local(operations, OPERATOR))
