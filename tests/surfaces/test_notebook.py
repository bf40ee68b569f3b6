"""docs/how-to/notebooks.md in a notebook, run by a kernel of its own: what is shown, and a click that decides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "notebooks.md"
SHOW, WIDGET, ASK, WAIT, *_ = re.findall(r"```python\n(.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
FIND = """
import time
from ipywidgets.widgets.widget import _instances

def find_button():  # in its row, where it has its handler
    shown = (child for box in [*_instances.values()] for child in getattr(box, "children", ()))
    return next((one for one in shown if getattr(one, "button_style", "") == "success"), None)

ends = time.monotonic() + 60
while find_button() is None and time.monotonic() < ends:
    time.sleep(0.01)
print(find_button().model_id, end="")
"""
CELLS = (SHOW, WIDGET, ASK, FIND, WAIT, "sandbox.close()")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotebookClient]:
    """A notebook whose cells are run one by one."""
    for name in ("HOME", "XDG_STATE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    cells = [nbformat.v4.new_code_cell(one) for one in CELLS]
    client = NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=90, kernel_name="python3")
    with client.setup_kernel():
        yield client


def run(client: NotebookClient, cell: str) -> list[Any]:
    """What a cell shows."""
    number = CELLS.index(cell)
    outputs: list[Any] = client.execute_cell(client.nb.cells[number], number).outputs
    return outputs


@pytest.mark.full
def test_a_notebook_shows_what_ran_and_a_click_lets_a_command_run(client: NotebookClient) -> None:
    (shown,) = run(client, SHOW)
    assert "<pre" in shown["data"]["text/html"]
    assert "{&#x27;a&#x27;: 1}" in shown["data"]["text/html"]
    assert shown["data"]["text/plain"].startswith("Execution ok in ")
    (box,) = run(client, WIDGET)
    assert "application/vnd.jupyter.widget-view+json" in box["data"]
    run(client, ASK)
    (allow,) = run(client, FIND)
    click = {"method": "custom", "content": {"event": "click"}}
    client.kc.shell_channel.send(client.kc.session.msg("comm_msg", {"comm_id": allow["text"], "data": click}))
    (said,) = run(client, WAIT)
    assert said["text"] == "done\n\n"
    run(client, CELLS[-1])
