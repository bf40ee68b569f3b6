"""Cells of one zygote, and interpreters that were started alike, have nothing random in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.warm.ready import at_once, make_venv, start_of
from tests.warmth import starting

from casemate import sync

RUNS = 6
DRAWS = {
    "random": "__import__('random').random()",
    "SystemRandom": "__import__('random').SystemRandom().random()",
    "secrets": "__import__('secrets').token_hex()",
    "uuid4": "__import__('uuid').uuid4()",
    "uuid1": "__import__('uuid').uuid1()",
    "getnode": "__import__('uuid').getnode()",
    "mkdtemp": "__import__('tempfile').mkdtemp()",
    "candidates": "next(__import__('tempfile')._get_candidate_names())",
    "ssl": "__import__('ssl').RAND_bytes(16)",
    "urandom": "__import__('os').urandom(16)",
    "authkey": "bytes(__import__('multiprocessing').current_process().authkey)",
    "semaphore": "next(__import__('multiprocessing.synchronize').synchronize.SemLock._rand)",
    "numpy": "__import__('numpy').random.rand()",
    "numpy normal": "__import__('numpy').random.randn()",
    "numpy generator": "__import__('numpy').random.default_rng().random()",
}
# What no module is needed for that only one of the environments has.
PLAIN = [name for name in DRAWS if not name.startswith("numpy")]
MODULES = ("random", "secrets", "uuid", "tempfile", "ssl", "hashlib", "multiprocessing.synchronize", "numpy.random")
# A module that has used everything when it is preloaded: whatever remembers what it drew has it in the zygote.
USES = "\n".join(f"used_{n} = {DRAWS[name]}" for n, name in enumerate(PLAIN))

Drawn = dict[str, list[str]]


@pytest.fixture(scope="module", params=["listed modules", "the usual modules", "no modules", "modules in use"])
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """What several cells drew that ran at once, by name."""
    folder = tmp_path_factory.mktemp("drawn")
    names = list(DRAWS)
    arguments: dict[str, object] = {"audit": folder / "audit.db"}
    if request.param == "listed modules":
        arguments["preload"] = MODULES
    elif request.param == "no modules":
        arguments["preload"] = ()
    elif request.param == "modules in use":
        names = PLAIN
        arguments |= {"environment": make_venv(folder / "venv", uses=USES), "preload": ["uses"]}
    draws = ", ".join(f"{name!r}: str({DRAWS[name]})" for name in names)
    code = f"import json  # numpy uses random\nprint(json.dumps({{{draws}}}))"
    with sync.Sandbox(**arguments) as sandbox, starting("warm"):
        executions = [*at_once(sandbox, [code] * RUNS), sandbox.run(code), sandbox.run(code)]
    assert {start_of(one)[0] for one in executions} <= {"pool", "zygote"}, [start_of(one) for one in executions]
    found = [json.loads(one.stdout) for one in executions]
    return {name: [one[name] for one in found] for name in names}


@pytest.mark.needs("data")
@pytest.mark.parametrize("name", DRAWS)
def test_no_two_cells_draw_the_same(drawn: Drawn, name: str) -> None:
    if len(set(drawn["getnode"])) == 1 and name == "getnode":
        pytest.xfail("libuuid remembers its node when a preloaded module has asked for it")
    if name not in drawn:
        pytest.skip("this environment has no numpy")
    assert len(set(drawn[name])) == RUNS + 2, drawn[name]


def test_no_two_cells_draw_the_same_from_what_a_preloaded_module_keeps_in_the_random_module(
    tmp_path: Path, audit: Path
) -> None:
    venv = make_venv(tmp_path / "venv", keeps="import random\nfor _ in range(700): random.random()\n")
    with sync.Sandbox(audit=audit, environment=venv, preload=["keeps"]) as sandbox, starting("warm"):
        executions = at_once(sandbox, ["import keeps, random\nprint(random.getstate())"] * 4)
    assert len({one.stdout for one in executions}) == 4


OTHERS = {
    "node: randomUUID": ("node", "console.log(require('crypto').randomUUID())"),
    "node: Math.random": ("node", "console.log(Math.random(), Math.random())"),
    "node: randomBytes": ("node", "console.log(require('crypto').randomBytes(16).toString('hex'))"),
    "shell: RANDOM": ("shell", "echo $RANDOM $RANDOM $RANDOM $RANDOM"),
    "shell: SRANDOM": ("shell", "echo $SRANDOM $SRANDOM"),
    "shell: a name for a file": ("shell", "mktemp"),
}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    with sync.Sandbox(audit=tmp_path_factory.mktemp("ready") / "audit.db") as sandbox:
        yield sandbox


@pytest.mark.needs("node")
@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_no_two_nodes_and_no_two_shells_that_waited_draw_the_same(ready: sync.Sandbox, case: tuple[str, str]) -> None:
    language, code = case
    with starting("warm"):
        executions = at_once(ready, [code] * RUNS, language=language)
    assert {start_of(one)[0] for one in executions} == {"pool"}
    assert len({one.stdout for one in executions}) == RUNS, [one.stdout for one in executions]
