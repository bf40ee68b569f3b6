"""A sandbox in which nothing works contains everything: what must go on working, as one test for each thing."""

from __future__ import annotations

import re

import pytest
from tests.escapes.cells import HERE, Attack, attack

from casemate import Limits, sync

LIMITS = Limits(memory="2GiB", disk="512MiB", cpus=2, processes=128)


def _names(language: str) -> list[str]:
    """The checks of a payload, read from its text."""
    text = (HERE / "payloads" / f"honest.{ {'python': 'py', 'node': 'cjs', 'shell': 'sh'}[language] }").read_text()
    if language == "python":
        names = re.findall(r"\w+(?:\(\"\w+\"\))?", text.split("CHECKS = (")[1].split("\n)")[0])
        return [re.sub(r"\(\"(\w+)\"\)", r"_\1", name) for name in names]
    if language == "node":
        return re.findall(r"^  async (\w+)\(", text, re.MULTILINE)
    return text.split("for name in ")[1].split(";")[0].replace("\\\n", " ").split()


CASES = [
    pytest.param(
        language, name, marks=[pytest.mark.needs("node")] if language == "node" else [], id=f"{language} {name}"
    )
    for language in ("python", "node", "shell")
    for name in _names(language)
]


@pytest.fixture(scope="module")
def results(sandbox: sync.Sandbox) -> dict[str, str]:
    """Each payload is run once, when its first test asks for it."""
    return {}


@pytest.mark.parametrize(("language", "name"), CASES)
def test_it_works(sandbox: sync.Sandbox, results: dict[str, str], language: str, name: str) -> None:
    if language not in results:
        it = Attack("honest", language)
        files = {**it.files, "given.txt": b"given"}
        execution = sandbox.run(
            it.code, language=language, files=files, stdin="given\n", limits=LIMITS, timeout=60, program_name=None
        )
        results[language] = execution.text
    outcome = re.search(
        rf"^(held|broke) {name}\b(.*?)(?=^held|^broke|^end)", results[language], re.MULTILINE | re.DOTALL
    )
    assert outcome, results[language][-3000:]
    assert outcome[1] == "held", outcome[0]


NUMBERS = """
import numpy, pandas, io
a = numpy.ones((3000, 3000))
assert (a @ a)[0, 0] == 3000
big = numpy.zeros(60_000_000, dtype="u1"); big[:] = 1
assert numpy.linalg.svd(numpy.random.rand(50, 50))[0].shape == (50, 50)
frame = pandas.DataFrame({"a": range(1000), "b": pandas.date_range("2024-01-01", periods=1000, tz="Europe/Berlin")})
assert frame.groupby(frame.b.dt.month).a.sum().sum() == 499500
frame.to_csv("output/frame.csv"); assert len(pandas.read_csv("output/frame.csv")) == 1000
print("numbers")
"""
PICTURES = """
import matplotlib, matplotlib.pyplot as plt
from matplotlib import font_manager
plt.plot([1, 2, 3]); plt.title("übung"); plt.savefig("output/plot.png"); plt.savefig("output/plot.pdf"); plt.show()
import os
assert font_manager.findfont("DejaVu Sans")
open(os.path.join(matplotlib.get_cachedir(), "kept"), "w").close()
print("pictures")
"""


@pytest.mark.needs("data")
def test_big_arrays_and_frames_work(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(NUMBERS, limits=LIMITS)
    assert execution.stdout == "numbers\n", execution.text


@pytest.mark.needs("data")
def test_plots_are_drawn_and_cached(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(PICTURES, limits=LIMITS)
    assert "pictures\n" in execution.stdout, execution.text
    assert {artifact.name for artifact in execution.artifacts} >= {"output/plot.png", "output/plot.pdf"}
    assert execution.images


FORKED = """
import os, time
from tests.escapes.payloads.attempts import finish
data = bytearray(b"x") * (100 << 20)
pids = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.7)
        os._exit(data[5] == 0)
    pids.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
finish()
"""


def test_children_may_share_their_parents_memory(sandbox: sync.Sandbox) -> None:
    """100 MiB seen by nine processes are 100 MiB, not 900."""
    attack(sandbox, Attack("forked", source=FORKED), limits=Limits(memory="512MiB"))


def test_honest_work_is_not_slowed_by_the_default_limits(sandbox: sync.Sandbox) -> None:
    """The defaults are enough for a pool, a server and a database at once."""
    code = "import multiprocessing, sqlite3, http.server, threading\n"
    code += "def f(x): return x * x\nif __name__ == '__main__':\n"
    code += "    with multiprocessing.Pool(4) as pool: print(sum(pool.map(f, range(1000))))\n"
    assert sandbox.run(code).stdout == "332833500\n"
