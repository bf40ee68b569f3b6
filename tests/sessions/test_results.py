"""What a step shows: values and displays as MIME bundles, pictures, and all of it in the order in which it was said."""

from __future__ import annotations

import pytest
from tests.sessions.driver import PNG, Open, done, events_of, said, told
from tests.sessions.driver import both_starts as start  # noqa: F401 - a fixture
from tests.support.languages import every_language

from casemate import Display, Done, ErrorEvent, Event, Output, ResultEvent
from casemate.sessions.session import Session


@pytest.mark.parametrize(
    ("language", "code", "text"),
    [
        pytest.param("python", "x = 41\nx + 1", "42"),
        pytest.param("python", "'häß'", "'häß'"),
        pytest.param("node", "let x = 41; x + 1", "42", marks=pytest.mark.needs("node")),
        pytest.param("node", "({a: [1, 'b']})", "{ a: [ 1, 'b' ] }", marks=pytest.mark.needs("node")),
    ],
)
async def test_the_value_of_the_last_expression_is_the_result(
    opened: Open, language: str, code: str, text: str
) -> None:
    execution = await opened(language).run(code)
    assert [result.text for result in execution.results] == [text]
    assert (execution.text, execution.stdout) == (text, "")


async def test_nothing_is_shown_for_a_statement_none_and_a_semicolon(session: Session) -> None:
    for code in ("x = 1", "None", "x;", "x  # comment\npass"):
        assert (await session.run(code)).results == (), code


@pytest.mark.needs("data")
async def test_a_table_is_a_result_in_html_and_in_text(session: Session) -> None:
    execution = await session.run("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', '<y>']})\ndf")
    (result,) = execution.results
    assert result.html is not None
    assert "<table" in result.html
    assert "&lt;y&gt;" in result.html
    assert result.text is not None
    assert result.text.split() == ["a", "b", "0", "1", "x", "1", "2", "<y>"]
    assert execution.text == result.text.strip()
    styled = await session.run("df.style.highlight_max()")
    assert "<style" in (styled.results[0].html or ""), styled.text


async def test_an_object_shows_itself_in_every_type_that_it_has(session: Session) -> None:
    code = """
class Rich:
    def _repr_html_(self): return "<b>h</b>"
    def _repr_markdown_(self): return "**m**"
    def _repr_latex_(self): return "$l$"
    def _repr_svg_(self): return "<svg/>"
    def _repr_json_(self): return {"j": [1]}
    def __repr__(self): return "plain"
class Own:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"application/vnd.vega.v5+json": {"v": 1}, "application/vnd.plotly.v1+json": {"p": 2},
                "text/plain": "own"}
display(Own())
Rich()
"""
    shown, result = (await session.run(code)).results
    assert (result.html, result.markdown, result.latex, result.svg, result.json, result.text) == (
        "<b>h</b>", "**m**", "$l$", "<svg/>", {"j": [1]}, "plain")  # fmt: skip
    assert dict(shown) == {
        "application/vnd.vega.v5+json": {"v": 1}, "application/vnd.plotly.v1+json": {"p": 2}, "text/plain": "own",
    }  # fmt: skip


@pytest.mark.full
@pytest.mark.needs("data")
@pytest.mark.parametrize("show", ["plt.show()", ""])
async def test_two_plots_are_two_pictures_each_in_its_place(session: Session, show: str) -> None:
    code = f"""
import matplotlib.pyplot as plt
plt.plot([1, 2]); {show}
print("between")
plt.figure(); plt.bar([1, 2], [3, 4]); {show}
print("after")
"""
    events = await events_of(session.stream(code))
    execution = done(events)
    assert [image.media_type for image in execution.images] == ["image/png"] * 2
    assert all(image.data.startswith(PNG) for image in execution.images)
    assert execution.images[0].data != execution.images[1].data
    kinds = [kind for kind, _ in told(events) if kind != "result"]
    assert kinds == (["display", "stdout", "display", "stdout"] if show else ["stdout", "display", "display"])
    assert (await session.run("1")).images == ()


async def test_a_display_is_updated_in_its_place_also_by_a_later_call(session: Session) -> None:
    code = """
handle = display("first", display_id="one")
print("between")
display("second")
handle.update("changed")
"""
    events = await events_of(session.stream(code))
    assert [kind for kind, _ in told(events)] == ["display", "stdout", "display", "update"]
    ids = [event.display_id for event in events if isinstance(event, Display)]
    assert (ids[0], ids[2]) == ("one", "one")
    execution = done(events)
    assert [result.text for result in execution.results] == ["'changed'", "'second'"]
    assert execution.text == "'changed'\nbetween\n'second'"


async def test_what_was_displayed_is_taken_back(session: Session) -> None:
    code = """
from IPython.display import clear_output
display("gone"); print("text"); clear_output(); display("stays")
display("replaced"); clear_output(wait=True); display("last")
"""
    execution = await session.run(code)
    assert [result.text for result in execution.results] == ["'last'"]
    assert "gone" not in execution.text


async def test_clearing_that_waits_clears_nothing_when_nothing_follows(session: Session) -> None:
    code = "from IPython.display import clear_output\ndisplay('stays'); clear_output(wait=True)"
    assert [result.text for result in (await session.run(code)).results] == ["'stays'"]


@pytest.mark.needs("node")
async def test_node_displays_html_and_pictures(opened: Open) -> None:
    code = """
display({ 'text/html': '<b>x</b>', 'text/plain': 'x' }, { raw: true });
display(Buffer.from('89504e470d0a1a0a00', 'hex'));
console.log('between');
[1, 2]
"""
    execution = await opened("node").run(code)
    assert execution.results[0].html == "<b>x</b>"
    assert execution.images[0].data.startswith(PNG)
    assert execution.results[2].json == [1, 2]
    assert execution.text.endswith("between\n[ 1, 2 ]")


MIXED = {
    "python": """
import sys
print("out 1"); print("err 1", file=sys.stderr); display("shown"); print("out 2", end="")
print("err 2", end="", file=sys.stderr); sys.stdout.write("out 3\\n"); "value"
""",
    "node": """
console.log("out 1"); console.error("err 1"); display("shown"); process.stdout.write("out 2");
process.stderr.write("err 2"); console.log("out 3"); "value"
""",
}
IN_ORDER = [
    ("stdout", "out 1\n"), ("stderr", "err 1\n"), ("display", "'shown'"), ("stdout", "out 2"), ("stderr", "err 2"),
    ("stdout", "out 3\n"), ("result", "'value'"),
]  # fmt: skip


@pytest.mark.parametrize("language", ["python", pytest.param("node", marks=pytest.mark.needs("node"))])
async def test_events_and_text_are_in_the_order_in_which_things_were_said(opened: Open, language: str) -> None:
    session = opened(language)
    events: list[Event] = []
    for _ in range(20):  # what is in order only by luck is not so twenty times
        events = await events_of(session.stream(MIXED[language]))
        assert told(events) == IN_ORDER
        execution = done(events)
        assert (execution.stdout, execution.stderr) == ("out 1\nout 2out 3\n", "err 1\nerr 2")
        assert execution.text == "out 1\nerr 1\n'shown'\nout 2err 2out 3\n'value'"
    kinds = [type(event) for event in events if not isinstance(event, Output)]
    assert kinds == [Display, ResultEvent, Done]


async def test_commands_displays_and_prints_are_in_order(session: Session) -> None:
    code = "print('a')\n!echo b\ndisplay('c')\n!echo d >&2\nprint('e')\n%%time\n"
    code = code.replace("%%time\n", "")
    for _ in range(10):
        events = await events_of(session.stream(code))
        assert told(events) == [("stdout", "a\nb\n"), ("display", "'c'"), ("stderr", "d\n"), ("stdout", "e\n")]


async def test_an_error_comes_after_what_was_said_before_it(session: Session) -> None:
    events = await events_of(session.stream("print('before'); display('shown'); print('and'); 1 / 0"))
    assert told(events) == [
        ("stdout", "before\n"), ("display", "'shown'"), ("stdout", "and\n"), ("error", "ZeroDivisionError"),
    ]  # fmt: skip
    (error,) = [event.error for event in events if isinstance(event, ErrorEvent)]
    execution = done(events)
    assert (execution.error, execution.status) == (error, "failed")
    assert (execution.stdout, len(execution.results)) == ("before\nand\n", 1)


@every_language
async def test_output_is_given_while_the_step_runs(opened: Open, language: str) -> None:
    wait = {
        "python": "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.005)\nprint('went')",
        "node": "console.log('ready'); while (!fs.existsSync('go')) await new Promise((r) => setTimeout(r, 5));"
        " console.log('went')",
        "shell": "echo ready; while [ ! -e go ]; do sleep 0.005; done; echo went",
    }
    session = opened(language)
    stream = session.stream(wait[language])
    first = await anext(stream)
    assert isinstance(first, Output)
    assert first.text == "ready\n"
    await session.files.write("go", "")
    assert told([first, *await events_of(stream)]) == [("stdout", "ready\nwent\n")]


async def test_nothing_of_one_step_is_in_the_next(session: Session) -> None:
    for n in range(50):
        execution = await session.run(f"import sys; print('o{n}', end=''); print('e{n}', end='', file=sys.stderr); {n}")
        assert (execution.stdout, execution.stderr, execution.results[0].text) == (f"o{n}", f"e{n}", str(n))
    assert await said(session, "pass") == ""
