"""The image, built from this tree and run as a user would, with Docker and with Podman."""

from __future__ import annotations

import faulthandler
import json
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.distribution.conftest import ROOT
from tests.distribution.engines import Docker, docker, make_base, podman
from tests.mcp_server.conftest import output_of
from tests.support.waiting import until

pytestmark = [pytest.mark.full, pytest.mark.root_only, pytest.mark.needs("docker")]

PROFILE = ROOT / "packaging" / "seccomp.json"
NATIVE = ("--security-opt", f"seccomp={PROFILE}", "--security-opt", "systempaths=unconfined")
CLOSED = ("--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/tmp")
ADDED = runpy.run_path(str(ROOT / "packaging" / "seccomp.py"))["_ADDED"]
PROGRAMS = {"python": "print(6 * 7)", "node": "console.log(6 * 7)", "shell": "echo $((6 * 7))"}
IMAGE = "casemate"
CLIENT = Path(__file__).with_name("image_client.py")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not in a folder of pytest's, which are kept: an image takes gigabytes while it is built."""
    path = tempfile.mkdtemp(prefix="casemate-image-", dir="/var/tmp")
    yield Path(path)
    subprocess.run(["rm", "-rf", path], check=True)  # much quicker than Python's own


@pytest.fixture(scope="module")
def built(folder: Path) -> None:
    """The image, with Node and no further packages, from a base that is made here."""
    faulthandler.cancel_dump_traceback_later()  # it takes minutes
    with docker(folder, own_network=False) as engine:
        make_base(folder, engine, "casemate-base")
        arguments = ["--build-arg=BASE=casemate-base", "--build-arg=EXTRAS=node", "--network=host"]
        engine.must("build", *arguments, "--file", f"{ROOT}/packaging/Dockerfile", "--tag", IMAGE, str(ROOT))


@pytest.fixture(scope="module")
def engine(folder: Path, built: None) -> Iterator[Docker]:
    with docker(folder, own_network=True) as one:
        yield one


@pytest.fixture(scope="module")
def loaded(engine: Docker, folder: Path) -> None:
    """The image is Podman's, too."""
    archive = folder / "image.tar"
    engine.must("save", "--output", str(archive), IMAGE)
    done = podman(folder, "load", "--input", str(archive))
    archive.unlink()
    if done.returncode:
        pytest.skip(f"podman does not work here: {done.stderr[-600:]}")


@pytest.fixture
def service(engine: Docker) -> Iterator[str]:
    """The name of a container with the service, once it is healthy; its volume has the same."""
    name = "casemate-service"
    options = ["--publish=127.0.0.1:8321:8321", f"--volume={name}:/state", "--health-interval=1s", *NATIVE, *CLOSED]
    engine.must("run", "--detach", "--name", name, *options, IMAGE)
    try:
        assert until(lambda: engine.must("inspect", "--format={{.State.Health.Status}}", name) == "healthy")
        yield name
    finally:
        engine("rm", "--force", "--volumes", name)
        engine("volume", "rm", name)


def doctor(run: Callable[..., subprocess.CompletedProcess[str]], *options: str) -> tuple[int, str, bool]:
    """Its exit code, why there is no native wall, and whether there is one of which everything was proved."""
    done = run("run", "--rm", "--network=none", *options, IMAGE, "doctor", "--format=json")
    assert done.stdout, done.stderr
    native = next(wall for wall in json.loads(done.stdout)["walls"] if wall["name"] == "native")
    is_proved = native["available"] and all(one["held"] for one in native["report"]["proofs"])
    return done.returncode, native["reason"], is_proved


def test_the_image_is_of_a_user_who_is_not_root_and_has_the_profile(engine: Docker) -> None:
    assert engine.must("run", "--rm", "--entrypoint=id", IMAGE, "-u") == "10001"
    place = "/usr/local/lib/casemate/seccomp.json"
    assert json.loads(engine.must("run", "--rm", "--entrypoint=cat", IMAGE, place)) == json.loads(PROFILE.read_text())


def test_with_nothing_special_programs_are_refused_and_the_options_named(engine: Docker) -> None:
    assert doctor(engine) == (69, "container_seccomp", False)
    refused = engine("run", "--rm", "--interactive", IMAGE, "run", "-", stdin=PROGRAMS["python"])
    assert (refused.returncode, refused.stdout) == (69, "")
    assert all(f"--security-opt {one}" in refused.stderr for one in ("seccomp=seccomp.json", "systempaths=unconfined"))


def test_with_the_profile_everything_of_the_native_wall_is_proved(engine: Docker) -> None:
    assert doctor(engine, *NATIVE) == (0, "", True)
    assert doctor(engine, *NATIVE, *CLOSED) == (0, "", True)


def test_either_option_alone_is_no_wall(engine: Docker) -> None:
    assert doctor(engine, *NATIVE[:2]) == (69, "masked_proc", False)
    assert doctor(engine, *NATIVE[2:]) == (69, "container_seccomp", False)


@pytest.mark.parametrize("language", PROGRAMS)
def test_programs_of_every_language_run(engine: Docker, language: str) -> None:
    options = ["run", "--rm", "--interactive", "--network=none", *NATIVE, *CLOSED, IMAGE]
    done = engine(*options, "run", "-", f"--language={language}", stdin=PROGRAMS[language])
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


@pytest.mark.parametrize("name", ADDED)
def test_no_program_runs_without_any_call_that_the_profile_adds(engine: Docker, tmp_path: Path, name: str) -> None:
    profile = json.loads(PROFILE.read_text())
    rules = [rule for rule in profile["syscalls"] if rule["names"] != [name]]
    (tmp_path / "less.json").write_text(json.dumps({**profile, "syscalls": rules}))
    options = [f"--security-opt=seccomp={tmp_path}/less.json", *NATIVE[2:]]
    run = ["run", "--rm", "--interactive", "--network=none", *options, IMAGE, "run", "-", "--allow=example.test"]
    done = engine(*run, stdin=PROGRAMS["python"])
    assert (done.returncode != 0, done.stdout) == (True, "")


def test_a_program_changes_a_folder_of_its_users(engine: Docker, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "old").write_text("old")
    for one in (tmp_path.parent, tmp_path, folder):
        one.chmod(0o755)
    subprocess.run(["chown", "-R", "12345:12345", folder], check=True)
    options = ["--user=12345:12345", f"--volume={folder}:/work", "--env=CASEMATE_WORKSPACE=/work"]
    program = "open('new', 'w').write(open('old').read())"
    done = engine("run", "--rm", "--interactive", *NATIVE, *options, IMAGE, "run", "-", stdin=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert ((folder / "new").read_text(), (folder / "new").stat().st_uid) == ("old", 12345)


def test_sessions_approvals_and_an_mcp_client_come_from_outside(engine: Docker, service: str) -> None:
    tokens = [
        engine.must("exec", service, "casemate", "service", "token", "add", *words)
        for words in (["laptop", "--operator", "--may-approve"], ["agent"])
    ]
    client = [*engine.inside, sys.executable, str(CLIENT), *tokens]
    done = subprocess.run(client, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"session": "21", "asked": "example.test", "denied": True, "mcp": "42"}
    engine.must("stop", service)
    assert engine.must("inspect", "--format={{.State.ExitCode}}", service) == "0"  # by itself, in time


async def test_an_mcp_client_starts_a_container_of_its_own(engine: Docker) -> None:
    arguments = ["run", "--rm", "--interactive", "--network=none", *NATIVE, IMAGE, "serve"]
    server = StdioServerParameters(command="docker", args=arguments, env=engine.environ)
    async with Client(stdio_client(server)) as client:
        answer = await client.call_tool("execute_code", {"code": PROGRAMS["python"]})
    assert output_of(answer) == "42"


@pytest.mark.needs("podman")
def test_in_podman_the_same_options_give_the_same_wall(folder: Path, loaded: None) -> None:
    # What a container may open is said, as root may not raise its own limits everywhere; timers are systemd's.
    options = ["--pull=never", "--no-healthcheck", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return podman(folder, arguments[0], *options, *arguments[1:])

    assert doctor(run) == (69, "masked_proc", False)
    assert doctor(run, *NATIVE) == (0, "", True)
    assert doctor(run, *NATIVE, *CLOSED[:3]) == (0, "", True)
