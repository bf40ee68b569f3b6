"""What a Python program shows reaches the host as MIME bundles."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.guest.stage import Outcome, guest

PNG = b"\x89PNG\r\n\x1a\n"


def run(folder: Path, program: str) -> Outcome:
    return guest(folder, sys.executable, program)


def bundles(outcome: Outcome) -> list[dict[str, Any]]:
    return [frame["bundle"] for frame in outcome.of_type("display")]


def test_an_object_is_shown_with_all_that_it_offers(tmp_path: Path) -> None:
    program = """
class Rich:
    def __repr__(self): return 'plain'
    def _repr_html_(self): return '<b>é</b>'
    def _repr_markdown_(self): return '*m*', {'meta': 1}
    def _repr_latex_(self): return None
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_pdf_(self): return bytearray(b'%PDF')
    def _repr_json_(self): return {'a': [1, None]}
display(Rich())
"""
    assert bundles(run(tmp_path, program)) == [
        {
            "text/plain": "plain",
            "text/html": "<b>é</b>",
            "text/markdown": "*m*",
            "image/svg+xml": "<svg/>",
            "image/png": base64.b64encode(b"\x89PNG").decode(),
            "application/pdf": base64.b64encode(b"%PDF").decode(),
            "application/json": {"a": [1, None]},
        }
    ]


def test_a_bundle_of_the_objects_own_is_kept_and_completed(tmp_path: Path) -> None:
    program = """
class Own:
    def __repr__(self): return 'own'
    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/html': 'mine', 'x/y+json': {'a': 1}}, {}
    def _repr_html_(self): return 'not asked'
display(Own())
"""
    assert bundles(run(tmp_path, program)) == [{"text/html": "mine", "x/y+json": {"a": 1}, "text/plain": "own"}]


def test_each_object_is_one_frame_in_order_and_nothing_is_printed(tmp_path: Path) -> None:
    outcome = run(tmp_path, "print(display(1, 'two', [3]))")
    assert [bundle["text/plain"] for bundle in bundles(outcome)] == ["1", "'two'", "[3]"]
    assert outcome.stdout == "None\n"


def test_a_raw_bundle_is_sent_as_it_is(tmp_path: Path) -> None:
    program = "display({'text/html': '<i>', 'image/png': b'p', 'text/none': None}, raw=True)"
    assert bundles(run(tmp_path, program)) == [{"text/html": "<i>", "image/png": "cA=="}]


BROKEN = {
    "raises": "def _repr_html_(self): 1 / 0",
    "raises in its bundle": "def _repr_mimebundle_(self, include=None, exclude=None): raise KeyError('k')",
    "recurses": "def _repr_html_(self): return self._repr_html_()",
    "gives what JSON has not": "def _repr_json_(self): return {'a': {1, 2}}",
    "gives not a number": "def _repr_json_(self): return float('nan')",
    "fails at every attribute": "def __getattr__(self, name): raise ValueError(name)",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_representation_that_fails_is_left_out_and_the_program_goes_on(tmp_path: Path, kind: str) -> None:
    program = f"class Odd:\n    def __repr__(self): return 'odd'\n    {BROKEN[kind]}\ndisplay(Odd())\nprint('on')"
    outcome = run(tmp_path, program)
    assert (outcome.exit, outcome.stdout, bundles(outcome)) == (0, "on\n", [{"text/plain": "odd"}])
    assert "display: Odd." in outcome.stderr


def test_an_object_whose_repr_fails_is_shown_by_its_type(tmp_path: Path) -> None:
    (bundle,) = bundles(run(tmp_path, "class Odd:\n    def __repr__(self): 1 / 0\ndisplay(Odd())"))
    assert bundle["text/plain"].startswith("<__main__.Odd object at ")


def test_objects_that_answer_to_every_name_and_classes_are_shown_as_text(tmp_path: Path) -> None:
    program = (
        "from unittest.mock import MagicMock\n"
        "display(MagicMock(name='m'))\n"
        "class A:\n"
        "    def _repr_html_(self): 0\n"
        "display(A)"
    )
    outcome = run(tmp_path, program)
    assert ([list(bundle) for bundle in bundles(outcome)], outcome.stderr) == ([["text/plain"], ["text/plain"]], "")


def test_a_lone_surrogate_does_not_break_the_frame(tmp_path: Path) -> None:
    program = "display({'text/plain': 'a\\ud800b'}, raw=True)\nraise ValueError('x\\udfff')"
    outcome = run(tmp_path, program)
    assert bundles(outcome) == [{"text/plain": "a?b"}]
    assert [frame["value"] for frame in outcome.of_type("error")] == ["x?"]


def test_what_is_too_large_for_a_frame_is_left_out_and_said(tmp_path: Path) -> None:
    program = "display({'text/plain': 'small', 'text/html': 'x' * (17 * 2**20)}, raw=True)\ndisplay(2)"
    outcome = run(tmp_path, program)
    assert bundles(outcome) == [{"text/plain": "small"}, {"text/plain": "2"}]
    assert "text/html" in outcome.stderr


def test_a_large_frame_arrives_whole(tmp_path: Path) -> None:
    (bundle,) = bundles(run(tmp_path, "display('x' * (8 * 2**20))"))
    assert len(bundle["text/plain"]) == 8 * 2**20 + 2


def test_frames_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    program = """
from threading import Barrier, Thread
barrier = Barrier(8)
def work(n):
    barrier.wait()
    for _ in range(5):
        display(str(n) * 300000)
threads = [Thread(target=work, args=[n]) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    texts = sorted(bundle["text/plain"][1:-1] for bundle in bundles(run(tmp_path, program)))
    assert texts == [str(n) * 300000 for n in range(8) for _ in range(5)]


def test_a_forked_child_prints_instead_of_mixing_its_frames_with_the_parents(tmp_path: Path) -> None:
    program = "import os\nif os.fork() == 0:\n    display('child')\n    raise ValueError\nos.wait()\ndisplay('parent')"
    outcome = run(tmp_path, program)
    assert outcome.stdout == "'child'\n"
    assert [frame.get("bundle") for frame in outcome.frames] == [{"text/plain": "'parent'"}]


def test_a_file_that_took_the_pipes_number_is_not_written_to(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "os.close(3)\n"
        "f = open('data', 'w')\n"
        "assert f.fileno() == 3\n"
        "display(1)\n"
        "f.close()\n"
        "print(open('data').read() == '')"
    )
    assert run(tmp_path, program).stdout == "1\nTrue\n"


def test_what_was_printed_before_is_written_before(tmp_path: Path) -> None:
    program = "import os\nprint('no newline', end='')\ndisplay(1)\nos.kill(os.getpid(), 9)"
    assert run(tmp_path, program).stdout == "no newline"


PYPLOT = "import matplotlib.pyplot as plt\n"


@pytest.mark.needs("data")
class TestPictures:
    def test_show_sends_each_open_figure_once_and_closes_it(self, tmp_path: Path) -> None:
        program = PYPLOT + "plt.plot([1, 2])\nplt.figure()\nplt.show()\nprint(plt.get_fignums())\nplt.show()"
        outcome = run(tmp_path, program)
        assert [base64.b64decode(bundle["image/png"])[:8] for bundle in bundles(outcome)] == [PNG, PNG]
        assert (outcome.exit, outcome.stdout, outcome.stderr) == (0, "[]\n", "")

    @pytest.mark.parametrize(
        "program",
        [
            "import matplotlib\nmatplotlib.use('Agg')\nfrom matplotlib.pyplot import *\nplot([1])\nshow()",
            "from matplotlib import pyplot\nfig, ax = pyplot.subplots()\nfig.show()\npyplot.show()",
            "import pandas\npandas.Series([1, 2]).plot()\nfrom matplotlib.pyplot import show\nshow(block=True)",
        ],
    )
    def test_show_works_in_every_way_of_calling_it(self, tmp_path: Path, program: str) -> None:
        outcome = run(tmp_path, program)
        assert (len(bundles(outcome)), outcome.stderr) == (1, "")

    def test_a_figure_and_an_image_are_shown_as_pictures(self, tmp_path: Path) -> None:
        program = PYPLOT + "display(plt.figure())\nfrom PIL import Image\ndisplay(Image.new('RGB', (2, 2)))"
        for bundle in bundles(run(tmp_path, program)):
            assert base64.b64decode(bundle["image/png"])[:8] == PNG
            assert "image/jpeg" not in bundle

    def test_a_table_is_shown_as_html(self, tmp_path: Path) -> None:
        (bundle,) = bundles(run(tmp_path, "import pandas\ndisplay(pandas.DataFrame({'a': [1]}))"))
        assert "<table" in bundle["text/html"]
        assert "a" in bundle["text/plain"]

    def test_a_child_process_keeps_plain_matplotlib(self, tmp_path: Path) -> None:
        program = (
            "import subprocess, sys\n"
            "code = 'import matplotlib.pyplot as p; p.plot([1]); p.show(); print(p.get_fignums())'\n"
            "subprocess.run([sys.executable, '-W', 'ignore', '-c', code])"
        )
        outcome = run(tmp_path, program)
        assert (outcome.stdout, outcome.frames) == ("[1]\n", [])

    def test_the_module_looks_as_without_the_hook(self, tmp_path: Path) -> None:
        program = (
            PYPLOT
            + "import inspect\n"
            + "print(type(plt.__loader__).__name__, vars(plt.__spec__.loader).keys() - {'name', 'path'})\n"
            + "print(plt.show.__name__, 'def show(' in inspect.getsource(plt))"
        )
        assert run(tmp_path, program).stdout == "SourceFileLoader set()\nshow True\n"


def test_importing_nothing_imports_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "print(sorted({'json', 'base64', 'traceback', 'matplotlib', 'typing', 'functools'} & set(sys.modules)))"
    )
    plain_modules = guest(tmp_path, sys.executable, program, env={"PYTHONPATH": ""}).stdout
    assert run(tmp_path, program).stdout == plain_modules


def test_display_of_ipython_reaches_the_host_and_leaves_a_shell_of_the_programs_own_alone(tmp_path: Path) -> None:
    package = tmp_path / "guest/workspace/IPython"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "display.py").write_text("from IPython.core.display_functions import display\n")
    (package / "core/__init__.py").write_text("")
    (package / "core/display_functions.py").write_text("def display(*objects, **options): print('shell', *objects)\n")
    (package / "core/interactiveshell.py").write_text(
        "class InteractiveShell:\n    running = False\n    @classmethod\n    def initialized(cls): return cls.running\n"
    )
    program = (
        "from IPython.display import display\ndisplay(1)\n"
        "from IPython.core.interactiveshell import InteractiveShell\nInteractiveShell.running = True\ndisplay(2)"
    )
    outcome = run(tmp_path, program)
    assert (bundles(outcome), outcome.stdout) == ([{"text/plain": "1"}], "shell 2\n")
