"""Names of the user's from outside: listed, read, bound, and carried from one session to another."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import pytest
from tests.sessions.driver import PROMPT, Open, said
from tests.support.languages import every_language

from casemate import InvalidArgument, Sandbox
from casemate.sessions.session import Session

VALUES: list[Any] = [
    None, True, False, 0, -1, 2**53 - 1, 1.5, -0.25, "", "häß 漢字 🦊 \"quoted\" 'x' \\ $HOME `id` \n\t", [], {},
    [1, [2, [None, "x"]]], {"a": {"b": [1, 2, {"c": "d"}]}, "häß": 1, "with space": 2}, "x" * 100_000,
    list(range(5000)), 2**53 + 1, -(2**63), 10**300,
    {"ids": [9007199254740993, 1234567890123456789, 1.5, "9007199254740993"]},
    [2**60, '\\"' + "9" * 20, "\\"],
]  # fmt: skip
NO_NODE = [pytest.mark.needs("node")]
pairs = pytest.mark.parametrize(
    ("giving", "taking"),
    [
        pytest.param(a, b, marks=NO_NODE * ("node" in (a, b)))
        for a, b in itertools.product(("python", "node", "shell"), repeat=2)
    ],
)


@every_language
async def test_a_value_that_is_set_is_got_again(opened: Open, language: str) -> None:
    session = opened(language)
    for value in VALUES:
        await session.set("value", value)
        assert await session.get("value") == value
        assert type(await session.get("value")) is type(value)


@pytest.mark.needs("node")
async def test_integers_that_a_number_would_round_are_bigints_in_node(opened: Open, sandbox: Sandbox) -> None:
    source, node, back = opened("python"), opened("node"), opened("python")
    ids = [9007199254740993, 1234567890123456789, -(2**64), 5]
    await said(source, f"ids = {ids}")
    await sandbox.sessions.bridge("ids", source, node)
    assert await said(node, "console.log(ids.join(' '), ids.map((id) => typeof id).join(' '))") == (
        f"{' '.join(map(str, ids))} bigint bigint bigint number\n"
    )
    await said(node, "ids = ids.map((id) => id + (typeof id === 'bigint' ? 1n : 1)); 0")
    await sandbox.sessions.bridge("ids", node, back)
    long = [2**60, "x" * 2**22]
    await node.set("long", long)
    assert await node.get("long") == long
    assert await said(back, "print(ids)") == f"{[one + 1 for one in ids]}\n"


@pairs
async def test_a_value_crosses_from_one_session_to_another(
    opened: Open, sandbox: Sandbox, giving: str, taking: str
) -> None:
    source, target = opened(giving, name="source"), opened(taking)
    await source.set("v", {"a": [1, "häß", None, True, 2.5], "b": {}})
    await sandbox.sessions.bridge("v", "source", target.id)
    assert await target.get("v") == {"a": [1, "häß", None, True, 2.5], "b": {}}
    use = {
        "python": ("print(v['a'][1], v['a'][2])", "häß None\n"),
        "node": ("console.log(v.a[1], v.a[2])", "häß null\n"),
        "shell": ("printf '%s\\n' \"${v//[[:space:]]/}\"", None),
    }
    code, printed = use[taking]
    text = await said(target, code)
    if printed is not None:
        assert text == printed
    else:
        import json

        assert json.loads(text) == {"a": [1, "häß", None, True, 2.5], "b": {}}


MADE = {
    "python": ("x = {'a': (1, 2), 'b': 'c'}", {"a": [1, 2], "b": "c"}),
    "node": ("let x = { a: [1, 2], b: 'c' }", {"a": [1, 2], "b": "c"}),
    "shell": ('x=\'{"a": [1, 2], "b": "c"}\'', {"a": [1, 2], "b": "c"}),
}


@every_language
async def test_what_code_has_made_is_got(opened: Open, language: str) -> None:
    session = opened(language)
    code, value = MADE[language]
    await said(session, code)
    assert await session.get("x") == value


CANNOT = {
    "python": ["object()", "{1: 2}", "float('nan')", "float('inf')", "{'a': {1}}", "b'x'", "1j", "lambda: 0",
               "'\\ud800'", "10 ** 10000", "__import__('functools').reduce(lambda a, _: [a], range(5000), [])"],
    "node": ["() => 0", "NaN", "10n ** 5000n", "undefined", "new Map()",
             "(() => { const a = []; a.push(a); return a })()",
             "Symbol('x')", "new Proxy({}, {})", "({ get a() { return 1 } })"],
    "shell": ["'not JSON'", "'{'", "''", "'1 2'"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("language", "value"),
    [pytest.param(language, value, marks=NO_NODE * (language == "node"))
     for language, values in CANNOT.items() for value in values],
)  # fmt: skip
async def test_a_value_that_cannot_travel_is_an_error_and_the_session_goes_on(
    opened: Open, sandbox: Sandbox, language: str, value: str
) -> None:
    session, target = opened(language), opened()
    await said(
        session, {"python": f"x = {value}", "node": f"globalThis.x = {value}; 0", "shell": f"x={value}"}[language]
    )
    with pytest.raises(InvalidArgument) as raised:
        await session.get("x")
    assert raised.value.argument == "name"
    assert "x" in str(raised.value)
    with pytest.raises(InvalidArgument):
        await sandbox.sessions.bridge("x", session, target.id)
    with pytest.raises(InvalidArgument):
        await target.get("x")
    await session.set("y", 1)
    assert await session.get("y") == 1


@every_language
async def test_a_name_that_is_not_there_is_an_error(opened: Open, language: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await opened(language).get("missing")
    assert "missing" in str(raised.value)


@every_language
@pytest.mark.parametrize("name", ["", "a b", "1x", "x;id", "x\nget 1 y", "$(id)", "x" * 300, "a.b", 5, None])
async def test_what_is_no_name_is_refused(opened: Open, language: str, name: Any) -> None:
    session = opened(language)
    for refused in (session.get(name), session.set(name, 1)):
        with pytest.raises(InvalidArgument) as raised:
            await refused
        assert raised.value.argument == "name"


@pytest.mark.parametrize(("language", "name"), [
    ("python", "class"), ("python", "None"), pytest.param("node", "class", marks=NO_NODE),
    pytest.param("node", "undefined", marks=NO_NODE), ("shell", "BASHPID"), ("shell", "UID"),
    ("shell", "SHELLOPTS")])  # fmt: skip
async def test_a_name_that_the_language_does_not_have_is_refused(opened: Open, language: str, name: str) -> None:
    session = opened(language)
    with pytest.raises(InvalidArgument):
        await session.set(name, 5)
    await session.set("ok", 5)
    assert await session.get("ok") == 5


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, (1, 2), {"a": (1,)}, b"x", object(), {1, 2}, 1j])
async def test_a_value_of_ours_that_cannot_travel_is_refused(session: Session, value: Any) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await session.set("x", value)
    assert raised.value.argument == "value"


async def test_set_and_get_run_no_code_of_the_users(session: Session) -> None:
    code = """
class Liar(dict):
    def items(self): raise RuntimeError("ran")
    def __iter__(self): raise RuntimeError("ran")
class Text(str):
    def __str__(self): raise RuntimeError("ran")
x = Liar(a=Text("b"))
"""
    await said(session, code)
    assert await session.get("x") == {"a": "b"}


@every_language
async def test_the_users_names_are_listed_in_order_and_no_others(opened: Open, language: str) -> None:
    make = {
        "python": "b = 1; a = 'x'; import os\ndef f(): pass\nclass C: pass",
        "node": "let b = 1; var a = 'x'; function f() {} class C {}",
        "shell": "b=1; a=x; f() { :; }; declare -a C=(1 2)",
    }
    session = opened(language)
    assert await session.variables() == []
    await said(session, make[language])
    names = [variable.name.removesuffix("()") for variable in await session.variables()]
    wanted = {"python": ["b", "a", "os", "f", "C"], "node": ["b", "a", "f", "C"], "shell": ["b", "a", "f", "C"]}[
        language
    ]
    assert (names if language == "python" else sorted(names)) == (wanted if language == "python" else sorted(wanted))
    await said(session, {"python": "del b", "node": "a = 2", "shell": "unset b"}[language])
    after = [variable.name.removesuffix("()") for variable in await session.variables()]
    assert ("b" in after) == (language == "node")


async def test_types_sizes_and_short_texts_are_told_without_running_the_users_code(session: Session) -> None:
    code = """
ran = []
class Slow:
    def __repr__(self):
        ran.append("repr")
        while True: pass
    def __sizeof__(self): ran.append("sizeof"); return 1
    def __class__(self): ran.append("class")
    def __getattribute__(self, name): ran.append(name); raise RuntimeError
slow = Slow(); held = [Slow(), {"k": Slow()}]; text = "x" * 10**6; number = 5; table = {"a": [1, 2]}
"""
    await said(session, code)
    async with asyncio.timeout(PROMPT):
        listed = {variable.name: variable for variable in await session.variables()}
    assert listed["number"].repr == "5"
    assert listed["number"].type == "int"
    assert listed["table"].repr == "{'a': [1, 2]}"
    assert listed["slow"].type.endswith("Slow")
    assert len(listed["text"].repr) <= 200
    assert (listed["text"].size or 0) > 10**6
    assert await said(session, "print(ran)") == "[]\n"


@pytest.mark.needs("data")
async def test_arrays_and_tables_are_described_by_their_shape(session: Session) -> None:
    await said(session, "import numpy as np, pandas as pd\na = np.zeros((100, 20)); d = pd.DataFrame({'x': range(7)})")
    listed = {variable.name: variable for variable in await session.variables()}
    assert "100x20" in listed["a"].repr
    assert listed["a"].size == 16000
    assert "7x1" in listed["d"].repr


async def test_values_wait_for_the_step_that_runs(session: Session) -> None:
    async with asyncio.timeout(PROMPT):
        step = asyncio.ensure_future(
            session.run("import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nx = 5", timeout=None)
        )
        await asyncio.sleep(0)
        asking = asyncio.ensure_future(session.get("x"))
        await session.files.write("go", "")
        assert await asking == 5
        assert (await step).ok


async def test_an_interpreter_that_dies_when_it_is_asked_is_an_error_and_the_next_step_works(session: Session) -> None:
    import casemate

    code = "import os, threading, time\ndef die():\n  while not os.path.exists('go'): pass\n  os._exit(1)\n"
    await said(session, code + "threading.Thread(target=die).start(); x = 1")
    await session.files.write("go", "")
    async with asyncio.timeout(PROMPT):
        with pytest.raises(casemate.CasemateError):
            while True:  # until it is dead: it is, or there is no `x` any more
                await session.get("x")
        assert await said(session, "print('fresh')") == "fresh\n"


@pytest.mark.needs("node")
async def test_names_of_node_may_hold_a_dollar_sign(opened: Open) -> None:
    node, python = opened("node"), opened("python")
    await node.run("var $x_1 = [1, 2]")
    assert await node.get("$x_1") == [1, 2]
    await node.set("$set", {"a": 1})
    assert (await node.run("$set.a")).text == "1"
    for session in (python, opened("shell")):
        with pytest.raises(InvalidArgument):
            await session.get("$x_1")


async def test_text_that_is_nested_too_deep_is_an_error_of_its_name(sandbox: Sandbox) -> None:
    async with sandbox.session("shell") as session:
        await session.run("printf -v deep '%5000s' ''; deep=${deep// /[}")
        with pytest.raises(InvalidArgument, match="deep"):
            await session.get("deep")
