"""Every setting binds on every surface, behind every wall."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.conftest import jupyter
from tests.pairwise import takes_all
from tests.service.daemon import environment
from tests.settings.groups import ELSEWHERE, GROUPS, NOT_KEPT, NOT_OFFERED, PROJECT, SECRET, Group, Seen, filled
from tests.settings.surfaces import SURFACES, Task, run_on
from tests.support.loopback import answer, serving
from tests.support.walls import skip_without

from casemate.model import isolation
from casemate.policy.keys import POLICY_KINDS

__all__ = ["jupyter"]

# MCP's client leaves streams to the collector, which finds them in a later test.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WALLS = (*isolation.WALLS,)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each setting on each surface: behind one wall in turn, or with --all behind each.

    A second user tries the pairs behind walls without namespaces, which root may not have, and leaves the others to
    root.
    """
    if "group" not in metafunc.fixturenames:
        return
    pairs = [(group, surface) for group in GROUPS for surface in SURFACES]
    names: tuple[str, ...] = ("group", "surface")
    cases: list[tuple[str, ...]] = [*pairs]
    if "wall" in metafunc.fixturenames:
        names = (*names, "wall")
        in_turn = [WALLS[(number + number // len(SURFACES)) % len(WALLS)] for number in range(len(pairs))]
        cases = [
            (*pair, wall)
            for pair, usual in zip(pairs, in_turn, strict=True)
            for wall in (WALLS if takes_all(metafunc.config) else [usual])
            if not (metafunc.config.getoption("--second-user") and isolation.WALLS[wall].has_namespaces)
        ]
    metafunc.parametrize(names, cases, ids=["-".join(case) for case in cases])


@contextmanager
def counting(requests: list[str], name: str) -> Iterator[int]:
    """The port of a server on this machine's loopback that writes down who came."""

    def note(request: BaseHTTPRequestHandler) -> None:
        requests.append(name)
        answer(request)

    with serving(note) as port:
        yield port


@pytest.fixture
def home(jupyter: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own that every user may enter, since cells are other users where root runs them."""
    monkeypatch.setenv("CASEMATE_SECRET_DEFAULT_KEY", SECRET)
    folder = Path(tempfile.mkdtemp(prefix="casemate-settings-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_project(home: Path) -> Path:
    """The caller's folder."""
    for name, text in PROJECT.items():
        path = home / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return home / "project"


def files_in(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text(errors="replace")
        for path in sorted(project.rglob("*"))
        if path.is_file()
    }


async def test_a_setting_binds(
    group: str, surface: str, wall: str, home: Path, any_engine: str, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("DOCKER_HOST", any_engine)
    skip_without(wall, tmp_path_factory)
    seen = await tried(GROUPS[group], GROUPS[group].policy, surface, wall, home, any_engine)
    exceeded = {setting for setting, holds in GROUPS[group].holds.items() if not holds(seen)}
    assert exceeded <= {setting for setting, where in NOT_KEPT if where == surface}, seen


@pytest.mark.full
@pytest.mark.root_only
async def test_a_setting_that_is_loose_is_exceeded(group: str, surface: str, home: Path, any_engine: str) -> None:
    offered = [setting for setting in GROUPS[group].holds if (setting, surface) not in NOT_OFFERED]
    if not offered:
        return
    seen = await tried(GROUPS[group], GROUPS[group].loose, surface, "native", home, any_engine)
    assert [setting for setting in offered if GROUPS[group].holds[setting](seen)] == [], seen


async def tried(what: Group, policy: Mapping[str, Any], surface: str, wall: str, home: Path, engine: str) -> Seen:
    """What is seen of the group's program under the policy."""
    requests: list[str] = []
    with ExitStack() as stack:
        ports = {name: stack.enter_context(counting(requests, name.lower())) for name in ("OPEN", "CLOSED")}
        project = make_project(home)
        file = home / "policy.json"
        file.write_text(what.written(policy, project, ports))
        env = {**environment(home), "DOCKER_HOST": engine}
        indexes = filled(what.indexes, project, ports)
        task = Task(what.program(project, ports), file, project, wall, env, what.secrets, indexes)
        seen = Seen(await run_on(surface, task), files_in(project), requests)
    gc.collect()  # what clients leave to the collector is found here, and not in a later test
    return seen


def test_each_key_of_a_policy_is_tried() -> None:
    tried = {setting.split(".")[0] for group in GROUPS.values() for setting in group.holds}
    tried |= {"allowed_domains" if name == "network" else name for name in tried}
    assert {*POLICY_KINDS} - tried - {*ELSEWHERE} == set()
    assert [place for place in ELSEWHERE.values() if not Path(__file__).parents[2].joinpath(place).is_file()] == []
