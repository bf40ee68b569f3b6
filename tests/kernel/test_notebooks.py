"""Notebooks that nbclient runs, as papermill and nbconvert do: the same comes out of them as from ipykernel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_MODEL = re.compile(r"\b[0-9a-f]{32}\b")
CELLS = (
    "import matplotlib.pyplot as plt, numpy as np\nnp.random.seed(3)\nprint('ready')",
    "plt.plot([1, 2, 3]); plt.title('one')",
    "figure, (left, right) = plt.subplots(1, 2)\nleft.hist(np.random.rand(50))\nright.scatter([1], [2])\nplt.show()",
    "figure",
    "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})\nframe",
    "frame.describe()",
    "frame.style.highlight_max(subset=['a']).set_uuid('fixed')",
    "from IPython.display import HTML, JSON, Markdown, Math, SVG, display, update_display, clear_output\n"
    "display(HTML('<b>b</b>'), Markdown('# m'), Math('x^2'), JSON({'a': [1]}, expanded=True))\n"
    "SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>')",
    "display('first', display_id='shown')\nupdate_display('second', display_id='shown')",
    "print('gone')\nclear_output()\nprint('stays')",
    "import sys\nprint('to stderr', file=sys.stderr)",
    "import ipywidgets as widgets\nslider = widgets.IntSlider(value=3, description='n')\nslider",
    "out = widgets.Output()\nwith out:\n    print('inside')\nout",
    "@widgets.interact(n=4)\ndef square(n): return n * n",
    "bar = widgets.IntProgress(max=3)\nfor n in range(4): bar.value = n\nbar.value",
    "!echo from a shell",
    "%%capture kept\nprint('hidden')",
    "kept.stdout, Out[4] is figure, In[1][:6]",
    "1 / 0",
)


# A process of its own: nbclient leaves sockets open. They are files in a folder: no port is another's.
_EXECUTE = """
import sys, nbformat
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.utils import run_sync
from nbclient import NotebookClient
path, kernel, socket = sys.argv[1:]
notebook = nbformat.read(path, 4)
manager = AsyncKernelManager(kernel_name=kernel, transport="ipc", ip=socket)
NotebookClient(notebook, km=manager, timeout=110, allow_errors=True).execute()
run_sync(manager.shutdown_kernel)()
nbformat.write(notebook, path)
"""


def run(kernel: str, cells: tuple[str, ...], folder: Path) -> Any:
    """The notebook as it is when all its cells have run."""
    path, socket = folder / f"{kernel}.ipynb", tempfile.mkdtemp(dir=os.environ["JUPYTER_RUNTIME_DIR"])
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    written = [{**cell, "id": f"cell{number}", "source": source} for number, source in enumerate(cells)]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": written}))
    subprocess.run([sys.executable, "-c", _EXECUTE, path, kernel, f"{socket}/k"], cwd=folder, timeout=110, check=True)
    return json.loads(path.read_text())


def shown(output: Mapping[str, Any]) -> Any:
    """An output without parts that differ between processes: addresses, names of models, colors, data of pictures."""
    if output["output_type"] == "stream":
        return output["name"], "".join(output["text"]).replace("\r\n", "\n")  # ipykernel gives a command a terminal
    if output["output_type"] == "error":
        return "error", output["ename"], output["evalue"], _STYLE.sub("", output["traceback"][-1])
    data = {kind: _plain(kind, value) for kind, value in output["data"].items()}
    return output["output_type"], data, output["metadata"]


def _plain(kind: str, value: Any) -> Any:
    if kind == "image/png":
        return "a picture"
    text = "".join(value) if isinstance(value, list) else str(value)
    return _MODEL.sub("model", _ADDRESS.sub("address", text))


def test_a_notebook_runs_in_nbclient(jupyter: Mapping[str, str], folder: Path) -> None:
    notebook = run("casemate-python", ("x = 6", "print('so')\nx * 7", "1 / 0"), folder)
    assert [[*map(shown, cell["outputs"])] for cell in notebook["cells"]] == [
        [],
        [("stdout", "so\n"), ("execute_result", {"text/plain": "42"}, {})],
        [("error", "ZeroDivisionError", "division by zero", "ZeroDivisionError: division by zero")],
    ]
    assert [cell["execution_count"] for cell in notebook["cells"]] == [1, 2, 3]


@pytest.mark.needs("data")
def test_plots_tables_and_widgets_come_out_as_from_ipykernel(jupyter: Mapping[str, str], folder: Path) -> None:
    ours, theirs = run("casemate-all", CELLS, folder), run("python3", CELLS, folder)
    for mine, other in zip(ours["cells"], theirs["cells"], strict=True):
        assert [*map(shown, mine["outputs"])] == [*map(shown, other["outputs"])], mine["source"]
    states = [
        one["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"] for one in (ours, theirs)
    ]
    names = [sorted(model["model_name"] for model in state.values()) for state in states]
    assert names[0] == names[1]
    assert "IntSliderModel" in names[0]
