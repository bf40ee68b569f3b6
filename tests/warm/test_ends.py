"""A program in a warm cell does, prints and ends as one whose interpreter was started for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from _pytest.mark import ParameterSet
from tests.warm.programs import ENDS, FILES, WORKS
from tests.warm.ready import start_of
from tests.warmth import starting

from casemate import Execution, sync

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
STDIN = "first line\nand\nmore"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    """One for all tests of this file."""
    with sync.Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db") as one:
        yield one


def visible(execution: Execution) -> dict[str, object]:
    """What a caller sees of a run, but for what differs between any two."""
    error = execution.error
    return {
        "status": execution.status,
        "exit_code": execution.exit_code,
        "cause": execution.cause and execution.cause.code,
        "stdout": _ADDRESS.sub("0x", execution.stdout),
        "stderr": _ADDRESS.sub("0x", execution.stderr),
        "error": error and (error.name, error.value, _ADDRESS.sub("0x", error.traceback)),
        "results": [(one.text, one.html) for one in execution.results],
        "files": {one.name: one.read_bytes() for one in execution.artifacts},
    }


def compare(sandbox: sync.Sandbox, code: str) -> dict[str, object]:
    """Run ``code`` both ways, and what both showed."""
    with starting("exec"):
        expected = sandbox.run(code, files=FILES, stdin=STDIN, timeout=20)
    with starting("warm"):
        found = sandbox.run(code, files=FILES, stdin=STDIN, timeout=20)
    assert (start_of(expected)[0], start_of(found)[0] in ("pool", "zygote")) == ("exec", True), start_of(found)
    assert visible(found) == visible(expected)
    assert expected.status != "timeout"
    return visible(found)


# What is known to be otherwise in a warm cell, and why.
OTHERWISE = {
    "frees what a loaded module holds": "what was loaded ahead is not taken apart",
}


def cases(programs: Iterable[str]) -> list[ParameterSet]:
    """Parameters; those that are known to differ must do so."""
    marks = {name: pytest.mark.xfail(strict=True, reason=reason) for name, reason in OTHERWISE.items()}
    return [pytest.param(name, marks=[marks[name]] if name in marks else []) for name in programs]


@pytest.mark.parametrize("name", cases(ENDS))
def test_a_program_ends_alike(shared: sync.Sandbox, name: str) -> None:
    compare(shared, ENDS[name])


@pytest.mark.full
@pytest.mark.needs("data")
@pytest.mark.parametrize("name", [name for name in ENDS if name not in OTHERWISE][::6])
def test_a_program_for_which_modules_were_loaded_ends_alike(shared: sync.Sandbox, name: str) -> None:
    compare(shared, f"{ENDS[name]}\n# numpy")


@pytest.mark.parametrize("name", cases(WORKS))
def test_a_program_works_alike(shared: sync.Sandbox, name: str) -> None:
    compare(shared, WORKS[name])


DATA = {
    "numpy": "import numpy as np\nprint(np.arange(6).reshape(2, 3) @ np.ones(3), np.linalg.inv(np.eye(2)))",
    "numpy on threads": "import numpy as np\na = np.ones((400, 400)); print((a @ a).sum())",
    "numpy with a seed": "import numpy as np, random\nnp.random.seed(5); random.seed(5)\n"
    "print(np.random.rand(), np.random.default_rng(5).random(), random.random())",
    "numpy that fails": "import numpy as np\nnp.ones(2) + np.ones(3)",
    "numpy's warnings": "import numpy as np\nprint(np.array([1.0]) / 0)",
    "numpy by fork": "import numpy as np, multiprocessing as m\n"
    "def f(n): return float((np.ones((99, 99)) @ np.ones(99)).sum()) + n\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(3)))",
    "pandas": "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})\nprint(df.describe())\n"
    "print(df.to_csv())",
    "pandas shown": "import pandas as pd\ndisplay(pd.DataFrame({'a': [1, 2]}))",
    "IPython's display": "from IPython.display import display, HTML\nimport numpy\ndisplay(HTML('<b>x</b>'))",
    "matplotlib's file": "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig('x.png'); import os\n"
    "print(os.path.getsize('x.png') > 1000, plt.get_backend(), __import__('matplotlib').get_cachedir())",
    "matplotlib's settings": "import matplotlib\n"
    "print({k: v for k, v in matplotlib.rcParams.items() if k != 'date.epoch'})",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.needs("data")
@pytest.mark.parametrize("name", DATA)
def test_a_program_with_data_works_alike(shared: sync.Sandbox, name: str) -> None:
    compare(shared, DATA[name])


@pytest.mark.full
@pytest.mark.needs("data")
def test_pictures_and_tables_are_shown_from_modules_that_were_loaded_before(shared: sync.Sandbox) -> None:
    with starting("warm"):
        execution = shared.run(
            "import matplotlib.pyplot as plt, pandas as pd\nplt.plot([1, 2]); plt.show()\n"
            "display(pd.DataFrame({'a': [1]}))\nfrom IPython import display as i\ni.display(i.Markdown('*x*'))"
        )
    assert start_of(execution)[0] in ("pool", "zygote")
    (image,) = execution.images
    assert image.data.startswith(b"\x89PNG")
    assert [bool(one.html and "<table" in one.html) for one in execution.results] == [False, True, False]


@pytest.mark.needs("data")
def test_loaded_modules_are_loaded_in_warm_cells_and_only_there(shared: sync.Sandbox) -> None:
    code = "import sys; print('numpy' in sys.modules, 'pandas' in sys.modules)"
    said = {}
    for how in ("exec", "warm"):
        with starting(how):
            said[how] = shared.run(code).stdout
    assert said == {"exec": "False False\n", "warm": "True True\n"}
