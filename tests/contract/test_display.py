"""What a Python program shows: results of every kind, pictures, and hostile words on the control pipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casemate import sync

FRAME = "import os, json\ndef frame(data): os.write(3, len(data).to_bytes(4, 'big') + data)\n"
PNG = b"\x89PNG\r\n\x1a\n"


def test_display_gives_a_result_and_echoes_nothing_else(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("1 + 1\ndisplay({'a': 1}, 'text')\n3 + 3")
    assert [result.text for result in execution.results] == ["{'a': 1}", "'text'"]
    assert (execution.stdout, execution.text) == ("", "{'a': 1}\n'text'")


def test_rich_forms_are_given_by_their_media_type(sandbox: sync.Sandbox) -> None:
    code = """
class Rich:
    def _repr_html_(self): return "<b>x</b>"
    def _repr_markdown_(self): return "**x**"
    def _repr_latex_(self): return "$x$"
    def _repr_svg_(self): return "<svg/>"
    def _repr_json_(self): return {"x": [1, None]}
    def __repr__(self): return "x"
display(Rich())
"""
    (result,) = sandbox.run(code).results
    assert (result.text, result.html, result.markdown, result.latex, result.svg, result.json) == (
        "x", "<b>x</b>", "**x**", "$x$", "<svg/>", {"x": [1, None]})  # fmt: skip
    assert (result.png, result.jpeg, result.pdf) == (None, None, None)
    assert result["text/html"] == "<b>x</b>"


@pytest.mark.needs("data")
def test_a_shown_plot_is_a_picture_that_can_be_saved(sandbox: sync.Sandbox, tmp_path: Path) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show(); plt.plot([3]); plt.show()"
    execution = sandbox.run(code)
    assert execution.ok, execution.stderr
    assert [image.media_type for image in execution.images] == ["image/png", "image/png"]
    assert all(image.data.startswith(PNG) for image in execution.images)
    execution.images[0].save(str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes() == execution.images[0].data


@pytest.mark.needs("data")
def test_a_table_is_shown_as_text_and_html(sandbox: sync.Sandbox) -> None:
    (result,) = sandbox.run("import pandas as pd; display(pd.DataFrame({'häß': [1, 2]}))").results
    assert "häß" in (result.text or "")
    assert "<table" in (result.html or "")


@pytest.mark.parametrize("said", [
    b"", b"no json", b"[]", b"null", b'{"type": "display"}', b'{"type": "display", "bundle": {}}',
    b'{"type": "display", "bundle": {"text/plain": 7}}', b'{"type": "display", "bundle": {"no type": "x"}}',
    b'{"type": "error", "name": 1, "value": "", "traceback": ""}', b"[" * 100_000, b'{"type": NaN}', b"\xff\xfe",
    b'{"type": "display", "bundle": {"image/png": "no base64"}}', b"9" * 10_000,
    json.dumps({"type": "display", "bundle": {"a/" + "b" * 999: "x"}}).encode()],
    ids=lambda said: repr(said[:24]))  # fmt: skip
def test_words_on_the_control_pipe_that_make_no_sense_do_no_harm(sandbox: sync.Sandbox, said: bytes) -> None:
    execution = sandbox.run(f"{FRAME}frame({said!r})\ndisplay('after')\nprint('end')")
    assert (execution.status, execution.stdout, execution.error) == ("ok", "end\n", None)
    assert execution.images == ()
    assert execution.results[-1].text == "'after'"


def test_a_frame_of_impossible_length_ends_the_talk_and_nothing_else(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("import os; os.write(3, b'\\xff' * 4); print('end')\ndisplay('unheard')")
    assert (execution.stdout, execution.results) == ("end\n", ())


def test_half_a_frame_does_no_harm(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("import os; os.write(3, (1000).to_bytes(4, 'big') + b'half'); print('end')")
    assert (execution.status, execution.stdout) == ("ok", "end\n")


def test_everything_that_is_given_as_text_can_be_encoded(sandbox: sync.Sandbox) -> None:
    said = rb'{"type": "display", "bundle": {"text/plain": "\ud800", "application/json": ["\ud800"]}}'
    execution = sandbox.run(f"{FRAME}frame({said!r})")
    (result,) = execution.results
    assert execution.text.encode()
    assert (result.text or "").encode()
    assert json.dumps(result.json, ensure_ascii=False).encode()


@pytest.mark.full
def test_more_results_than_anyone_reads_are_bounded(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("for n in range(3000): display(n)")
    assert execution.ok
    assert len(execution.results) == 1000
    assert execution.truncated
