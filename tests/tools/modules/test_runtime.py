"""What programs import as `mcptools`, over a real connection to a peer on the loopback."""

from __future__ import annotations

import ast
import asyncio
import copy
import datetime as dt
import enum
import importlib
import json
import os
import pickle
import pydoc
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic
import pydantic_core
import pytest
from tests.tools.conftest import MODULES, RUNTIME, real_tools
from tests.tools.peer import PNG, TOOLS, Peer, on_the_loopback

from casemate.tools.modules.catalogue import Catalogue
from casemate.tools.tool import Tool

MAX_WAIT = 60.0  # seconds


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    peer = Peer()
    with on_the_loopback(peer) as where:
        monkeypatch.setenv("CASEMATE_TOOLS", where)
        yield peer


@pytest.fixture
def mcptools(peer: Peer, runtime: ModuleType) -> Iterator[Any]:
    yield runtime
    for connections in sys.modules["mcptools._wire"]._kept.values():
        while connections:
            connections.pop().close()


def tool(name: str) -> Any:
    return importlib.import_module(f"mcptools.files.{name}")


def test_a_tool_is_called_with_parameters_or_keywords(mcptools: Any, peer: Peer) -> None:
    module = tool("list_directory")
    for result in (module.run(module.Params(path=".")), module.run(path="."), module.run({"path": "."})):
        assert isinstance(result, module.Result)
        assert result.content == result["content"] == "of ."
        assert [(entry.name, entry.size) for entry in result.entries] == [("a.txt", 3), ("sub", None)]
        assert json.loads(json.dumps(result)) == result
        assert [block.text for block in mcptools.content_of(result)] == ["as text"]
    assert peer.calls == [{"server": "files", "tool": "list_directory", "arguments": {"path": "."}}] * 3


def test_one_connection_serves_many_calls(mcptools: Any, peer: Peer) -> None:
    run = tool("echo").run
    for n in range(20):
        run(b=n)
    assert peer.connections == 1


def test_a_place_where_nobody_answers_any_more_is_looked_for_anew(mcptools: Any, peer: Peer) -> None:
    run, wire = tool("echo").run, sys.modules["mcptools._wire"]
    run(b=1)
    [name] = wire._places
    with socket.create_server(("127.0.0.1", 0)) as gone:
        wire._places[name] = (*wire._places[name][:4], gone.getsockname())
    for connection in wire._kept.pop(os.getpid()):
        connection.close()
    run(b=2)
    assert [call["arguments"] for call in peer.calls] == [{"b": 1}, {"b": 2}]
    assert wire._places[name][4][1] == name[1]


def test_null_is_sent_and_what_is_unset_is_not(mcptools: Any, peer: Peer) -> None:
    module = tool("echo")
    module.run(a=None)
    module.run(a=mcptools.UNSET, b=1)
    params = module.Params(a="x", b=2)
    params.a = mcptools.UNSET
    module.run(params)
    assert [call["arguments"] for call in peer.calls] == [{"a": None}, {"b": 1}, {"b": 2}]
    assert module.Params(a=None) != module.Params()
    assert "a" not in module.Params(a=mcptools.UNSET)
    assert module.Params().a is None


@pytest.mark.parametrize(
    ("kind", "error"),
    [("denied", "ToolDenied"), ("tool", "ToolError"), ("invalid", "InvalidArguments"), ("unknown", "ToolUnavailable"),
     ("unavailable", "ToolUnavailable"), ("timeout", "ToolTimeout"), ("limit", "ToolError"), ("new", "ToolError")],
)  # fmt: skip
def test_a_failure_is_an_exception_with_what_the_tool_said(mcptools: Any, kind: str, error: str) -> None:
    with pytest.raises(mcptools.ToolError, match="as asked") as failed:
        tool("fail").run(kind=kind)
    assert type(failed.value) is getattr(mcptools, error)
    assert failed.value.kind == kind
    assert failed.value.content[0].text == "it said so"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs path"),
        ({"path": ".", "pth": 1}, "no 'pth'"),
        ({"path": 5}, "path"),
        ({"path": float("nan")}, "JSON"),
        ({"path": object()}, "object"),
    ],
)
def test_wrong_arguments_never_reach_a_tool(mcptools: Any, peer: Peer, arguments: Any, said: str) -> None:
    with pytest.raises(mcptools.InvalidArguments, match=said):
        tool("list_directory").run(**arguments)
    assert peer.calls == []


def test_values_that_programs_have_are_sent_as_what_json_has(mcptools: Any, peer: Peer) -> None:
    numpy = pytest.importorskip("numpy")
    tool("list_directory").run(path=Path("/x"), depth=numpy.int64(3))
    tool("echo").run(c=numpy.float64(0.5))
    assert [call["arguments"] for call in peer.calls] == [{"path": "/x", "depth": 3}, {"c": 0.5}]


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    colour: Colour


class Model(pydantic.BaseModel):
    when: dt.datetime
    price: Decimal


def test_values_are_sent_as_pydantic_writes_them(mcptools: Any) -> None:
    when = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    value = {
        "model": Model(when=when, price=Decimal("1.50")),
        "point": Point(1, Colour.RED),
        "uuid": uuid.UUID(int=1),
        "decimal": Decimal("0.10"),
        "bytes": b"text",
        "day": when.date(),
        "large": [2**53, 2**53 + 1, 10**40],
        "durations": [dt.timedelta(hours=1), dt.timedelta(days=1, seconds=3.5), dt.timedelta(0)],
        "before": dt.timedelta(minutes=-1),
    }
    line = sys.modules["mcptools._wire"]._line(value)
    assert json.loads(line) == pydantic_core.to_jsonable_python(value)


@pytest.mark.parametrize("kind", [dict, list])
def test_a_value_that_holds_itself_is_a_clear_error(mcptools: Any, peer: Peer, kind: type) -> None:
    value: Any = kind()
    value.update(again=value) if kind is dict else value.append(value)
    with pytest.raises(mcptools.InvalidArguments, match="contains itself"):
        tool("echo").run(c=value)
    assert peer.calls == []


def test_pictures_sounds_and_resources_are_objects(mcptools: Any) -> None:
    result = tool("picture").run()
    said, picture, link, resource, sound = result.content
    assert (result, result.text, said.text) == ("see", "see", "see")
    assert (picture.data, picture.media_type, picture._repr_png_()) == (PNG, "image/png", PNG)
    assert picture.to_pil().size == (1, 1)
    assert result.images == [picture]
    assert set(result._repr_mimebundle_()) == {"text/plain", "image/png"}
    assert (resource.data, resource.media_type, sound.data) == (b"hi", "application/zip", b"hi")
    assert [each.text for each in link.read()] == ["from files"]


def test_text_that_is_json_can_be_had_with_attributes(mcptools: Any) -> None:
    assert tool("echo").run(b=3).json().b == 3


def test_objects_survive_copies_and_pickles(mcptools: Any) -> None:
    module = tool("list_directory")
    for value in (module.run(path="."), tool("picture").run()):
        assert copy.deepcopy(value) == value
        assert pickle.loads(pickle.dumps(value)) == value


def test_calls_from_threads_run_beside_each_other(mcptools: Any, peer: Peer) -> None:
    run = tool("echo").run
    meeting = threading.Barrier(8, timeout=MAX_WAIT)

    def call(n: int) -> int:
        meeting.wait()
        return int(run(b=n).json().b)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == list(range(8))


def test_calls_from_tasks_run_beside_each_other(mcptools: Any, peer: Peer) -> None:
    arun = tool("echo").arun

    async def all_at_once() -> list[Any]:
        async with asyncio.timeout(MAX_WAIT):
            return await asyncio.gather(*(arun(b=n) for n in range(8)))

    assert [result.json().b for result in asyncio.run(all_at_once())] == list(range(8))


def test_a_cancelled_task_cancels_its_call(mcptools: Any, peer: Peer) -> None:
    async def cancel_it() -> None:
        task = asyncio.ensure_future(tool("hang").arun())
        while not peer.calls:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_it())
    assert peer.cancelled.acquire(timeout=MAX_WAIT)


def test_an_interrupt_cancels_the_call_and_the_next_one_works(mcptools: Any, peer: Peer) -> None:
    run = tool("hang").run
    ident, raised = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        """More than once: of a signal in the instant before a wait, Python's handler runs after the wait."""
        while not peer.calls:
            raised.wait(0.001)
        while not raised.wait(0.1):
            signal.pthread_kill(ident, signal.SIGINT)

    def received(_signal: int, _frame: object) -> None:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, received)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert peer.cancelled.acquire(timeout=MAX_WAIT)
    assert tool("echo").run(b=1).json() == {"b": 1}


def test_a_forked_child_has_connections_of_its_own(mcptools: Any, peer: Peer) -> None:
    run = tool("echo").run
    run(b=1)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if run(b=2).json().b == 2 else 1)
        finally:
            os._exit(2)
    for n in range(3, 30):
        assert run(b=n).json().b == n
    assert os.waitpid(pid, 0)[1] == 0
    assert peer.connections == 2


def test_where_nobody_answers_that_is_said(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASEMATE_TOOLS", "127.0.0.1:1")
    with pytest.raises(ModuleNotFoundError, match="no tools"):
        importlib.import_module("mcptools.files.echo")
    assert dir(runtime) == []


def test_a_tool_that_is_added_later_is_there_at_once(mcptools: Any, peer: Peer) -> None:
    tool("echo")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mcptools.later.one")
    peer.tools.append(type(TOOLS[0])("later", "one"))
    assert importlib.import_module("mcptools.later.one").run().json() == {}
    assert "later" in dir(mcptools)


def test_servers_and_tools_can_be_looked_at_without_importing_them(mcptools: Any) -> None:
    assert dir(mcptools) == ["admin_server", "files"]
    assert "list_directory" in dir(mcptools.files)
    assert mcptools.files.list_directory.run(path=".").content == "of ."
    assert "list_directory: List a directory." in mcptools.files.__doc__
    assert mcptools.admin_server.admin_tools_list.run() == "{}"
    assert mcptools.files.import_.run(class_="x").json() == {"class": "x"}
    assert "path (str)" in mcptools.files.list_directory.run.__doc__
    with pytest.raises(AttributeError):
        _ = mcptools.files.nothing
    with pytest.raises(AttributeError):
        _ = mcptools.nothing


def test_searching_tells_what_fits(mcptools: Any) -> None:
    assert repr(mcptools.search("directory")) == "mcptools.files.list_directory: List a directory."
    assert "path (str)" in mcptools.search("directory", detail="full")
    assert mcptools.search("zebra").startswith("No tool fits")


@pytest.mark.usefixtures("runtime")
def test_help_of_a_tool_tells_every_key_of_what_it_takes_and_gives_and_nothing_of_how_it_is_made() -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer", "description": "To the right."}}}
    rows = {"type": "object", "properties": {"keys": {"type": "string", "description": "Of its lock."}}}
    result = {"properties": {"count": {"type": "integer"}, "rows": {"items": rows, "type": "array"}}, "type": "object"}
    described = Tool("files", "draw", "Draws.", {"type": "object", "properties": {"at": point}}, result)
    (source,) = (text for path, text in Catalogue([described]).package({}).items() if path.endswith("draw.py"))
    told = pydoc.plain(pydoc.render_doc(_module_of(source)))
    for line in ("at (At, optional)", "At:", "x (int, optional): To the right.", "Returns a Result:",
                 "count (int, optional)", "keys_ (str, optional): [keys] Of its lock."):  # fmt: skip
        assert f"    {line}\n" in told
    assert len(told.splitlines()) < 60
    assert "__annotations__" not in told
    text, _rows = Catalogue([described]).search("draw", detail="full")
    assert str(ast.get_docstring(ast.parse(source))) in text


def _module_of(source: str) -> ModuleType:
    module = ModuleType("mcptools.files.draw")
    exec(source, module.__dict__)
    return module


def test_the_names_that_servers_may_not_take_are_those_of_the_package(runtime: ModuleType) -> None:
    from casemate.tools.schemas.types import OWN_NAMES

    assert set(runtime.__all__) == OWN_NAMES


def test_the_names_that_attributes_may_not_take_are_those_of_objects(runtime: ModuleType) -> None:
    from casemate.tools.modules.generate import ATTRIBUTES

    assert {name for name in dir(runtime.Object) if not name.startswith("_")} <= ATTRIBUTES


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of all real tools and the peer's, as files."""
    folder = tmp_path_factory.mktemp("generated")
    for name, content in Catalogue([*real_tools(), *TOOLS]).package(RUNTIME).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def test_the_package_works_as_files(generated: Path, peer: Peer) -> None:
    program = (
        "from mcptools.files.list_directory import run, Params; print(run(Params(path='.')).content, run.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=generated, capture_output=True, text=True, check=True)
    assert done.stdout == "of . mcptools.files.list_directory\n"


def test_every_tool_of_real_servers_can_be_imported(generated: Path) -> None:
    modules = [path for path in generated.rglob("*.py") if not path.name.startswith("_")]
    assert len(modules) == len(real_tools()) + len(TOOLS)
    names = [".".join(path.relative_to(generated).with_suffix("").parts) for path in modules]
    program = f"import importlib\nfor name in {names!r}: assert importlib.import_module(name).run.__doc__, name"
    subprocess.run([sys.executable, "-c", program], cwd=generated, check=True)


RIGHT = """
from mcptools.files.list_directory import run, arun, Params
from mcptools.filesystem.edit_file import run as edit
from mcptools.playwright.browser_fill_form import run as fill
from mcptools import files

result = run(Params(path="."))
reveal: str = result.content
sizes: list[int | None] = [entry.size for entry in result.entries or []]
run(path=".", depth=3)
run({"path": "."})
edit(path="a", edits=[{"oldText": "a", "newText": "b"}])
fill(fields=[{"target": "t", "name": "n", "type": "checkbox", "value": "true"}])
text: str = files.echo.run(a=None).text

async def later() -> str:
    return (await arun(path=".")).content
"""
WRONG = {
    "a wrong type": "from mcptools.files.list_directory import run\nrun(path=5)",
    "a missing argument": "from mcptools.files.list_directory import run\nrun(depth=1)",
    "a wrong keyword": "from mcptools.files.list_directory import run\nrun(pth='.')",
    "a wrong attribute": "from mcptools.files.list_directory import run\nrun(path='.').contents",
    "a wrong key of a dictionary": "from mcptools.files.list_directory import run\nrun({'pth': '.'})",
    "a null that is none": "from mcptools.files.list_directory import run\nrun(path='.', depth=None)",
    "a wrong value": "from mcptools.playwright.browser_fill_form import run\n"
    "run(fields=[{'target': 't', 'name': 'n', 'type': 'box', 'value': 'true'}])",
}


@pytest.mark.full
def test_a_type_checker_understands_the_package(generated: Path) -> None:
    (generated / "right.py").write_text(RIGHT)
    names = []
    for n, program in enumerate(WRONG.values()):
        (generated / f"wrong{n}.py").write_text(program)
        names.append(f"wrong{n}.py")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--no-error-summary",
        "mcptools",
        "right.py",
        *names,
    ]
    done = subprocess.run(command, cwd=generated, capture_output=True, text=True, check=False)
    found = {line.partition(":")[0] for line in done.stdout.splitlines() if ": error:" in line}
    assert found == set(names), done.stdout


def test_the_runtime_needs_little_when_it_is_imported() -> None:
    slow = {"asyncio", "dataclasses", "inspect", "re", "socket", "typing"}
    program = f"import mcptools, sys; print(*{slow} & set(sys.modules))"
    environment = {"PYTHONPATH": str(MODULES), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= {"re"}
