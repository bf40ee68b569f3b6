"""The host that the attacks want to hurt: canaries, listeners, a victim. One sandbox for each module."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.escapes import host
from tests.escapes.expected import UNDECIDED, WEAKER
from tests.escapes.listeners import Listeners, listening
from tests.escapes.stepwise import MEANT, in_sessions
from tests.support.languages import LANGUAGES
from tests.support.waiting import until
from tests.support.walls import WALLS, judge, skip_without, walls_of
from tests.warmth import STARTS, starting

from casemate import sync
from casemate.walls import isolated_python, registry
from casemate.walls.docker import wall as docker_wall
from casemate.walls.native.selftest import LaunchProgram

# The native wall, whose cells begin as where there was no C compiler.
WITHOUT_NATIVE_INIT = (
    "import os, sys; sys.path.append(os.environ['CASEMATE_ROOT']); "
    "from casemate.supervisor import native_init; native_init.load = lambda: None; "
)


class GvisorWall(docker_wall.DockerWall):
    """Containers with a kernel of their own."""

    def __init__(self, launch_probe: LaunchProgram, concurrency: int, _: object = None) -> None:
        super().__init__(launch_probe, concurrency, (None, "runsc"))


@pytest.hookimpl(trylast=True)  # else the order of a test's ids depends on what else is collected
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every attack behind each wall, by exec and warm; as a step of a session, too, if it means the same."""
    name = metafunc.function.__name__
    ways = getattr(metafunc.module, "STARTS", (*STARTS, "session") if name in MEANT else STARTS)
    metafunc.parametrize("start", ways, indirect=True, scope="module")
    walls = getattr(metafunc.module, "WALLS", (*WALLS, pytest.param("interpreted", marks=pytest.mark.full)))
    metafunc.parametrize("wall", walls_of(metafunc.config, walls), indirect=True, scope="module")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a wall does not contain is expected to fail behind it; behind docker, the walls of an attack are the
    container's however its cell came about, so one start is enough there.
    """
    items[:] = [item for item in items if not _is_started_twice(item)]
    judge(items, Path(__file__).parent, WEAKER, UNDECIDED)


def _is_started_twice(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    is_twice = len(getattr(item.module, "STARTS", STARTS)) > 1  # type: ignore[attr-defined]
    is_here = is_twice and item.path.parent == Path(__file__).parent
    return is_here and params.items() >= {"wall": "docker", "start": "exec"}.items()


@pytest.fixture(scope="module", autouse=True)
def wall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The wall of every sandbox of this module; programs of tests read it in a variable."""
    name = str(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if name == "docker" and getattr(request.module, "ANY_ENGINE", False):
            patch.setenv("DOCKER_HOST", request.getfixturevalue("any_engine"))
        elif name in ("docker", "gvisor") and os.geteuid():
            pytest.skip("an ordinary user cannot look into containers: ./test --all as root does")
        skip_without(name, tmp_path_factory)
        if name == "gvisor":
            name = "docker"
            patch.setattr(docker_wall, "DockerWall", GvisorWall)
        if name == "interpreted":
            name = "native"
            patch.setattr(isolated_python, "_BOOT", WITHOUT_NATIVE_INIT + isolated_python._BOOT)
        patch.setenv("CASEMATE_ISOLATION", name)
        patch.setattr(registry, "automatic", lambda: (name,))
        yield name


@pytest.fixture(scope="module", autouse=True)
def start(request: pytest.FixtureRequest) -> Iterator[str]:
    """How cells come about in this module: by exec, warm, or as those of sessions, each attack being a step."""
    with in_sessions() if request.param == "session" else starting(request.param):
        yield request.param


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """Every language in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def scratch(start: str, wall: str) -> Iterator[Path]:
    """A folder in the user's home: a cell has a /tmp of its own, which would hide that a path is not reachable."""
    folder = Path(tempfile.mkdtemp(prefix=".casemate-escapes-", dir=Path.home()))
    try:
        yield folder
    finally:
        _remove(folder)


@pytest.fixture(scope="module")
def sandbox(start: str, wall: str, scratch: Path) -> Iterator[sync.Sandbox]:
    """Started in a working directory and with an environment that hold secrets; see `canaries`."""
    with sync.Sandbox(audit=scratch / "audit.db") as one:
        one.run("pass")
        yield one


@pytest.fixture(scope="module")
def canaries(scratch: Path) -> Iterator[host.Canaries]:
    """Files with secrets in home, /tmp, /dev/shm and the working directory; the environment holds one too."""
    made = host.Canaries()
    name = f"canary-file-{secrets.token_hex(4)}"
    made.put("home", scratch / "home" / name)
    made.put("ssh", scratch / "home/.ssh/id_ed25519")
    made.put("dotenv", scratch / "cwd/.env")
    made.put("cwd", scratch / "cwd" / name)
    made.secrets["environment"] = host.secret()
    with contextlib.ExitStack() as stack:
        for place in ("/tmp", "/dev/shm"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="canary-", dir=place)))
            folder.chmod(0o755)
            made.put(place, folder / name)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("ESCAPES_SECRET", made.secrets["environment"])
        patch.chdir(scratch / "cwd")
        yield made


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[host.Victim]:
    """A process of the user's."""
    with host.victim(tmp_path) as one:
        yield one


@pytest.fixture
def listeners(scratch: Path) -> Iterator[Listeners]:
    """Sockets on the host's loopback, abstract ones, and one in the home folder."""
    with listening(scratch) as ones:
        yield ones


@pytest.fixture
def workspace(scratch: Path) -> Iterator[Path]:
    """A project of the caller's, with what projects have."""
    folder = scratch / f"project-{secrets.token_hex(4)}"
    for name in (".git/hooks", ".vscode", ".venv/bin", "src"):
        (folder / name).mkdir(parents=True)
    for name, content in {
        ".git/config": "[core]\n", ".git/HEAD": "ref: refs/heads/main\n", ".git/hooks/pre-commit": "#!/bin/sh\n",
        ".envrc": "export A=1\n", ".vscode/tasks.json": "{}\n", ".venv/bin/activate": "# nothing\n",
        "src/main.py": "x = 1\n",
    }.items():  # fmt: skip
        (folder / name).write_text(content)
    try:
        yield folder
    finally:
        _remove(folder)


@pytest.fixture(autouse=True)
def _no_survivors() -> Iterator[None]:
    """Whatever a test did, no process of a cell is alive after it."""
    yield
    until(lambda: not host.cell_processes(), "the end of every cell")


def _remove(folder: Path) -> None:
    def open_up(function: object, path: str, _error: object) -> None:
        os.chmod(os.path.dirname(path), 0o700)
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
        if function is os.open:  # of what may not be entered
            _remove(Path(path))
            return
        assert callable(function)
        function(path)

    shutil.rmtree(folder, onerror=open_up)
