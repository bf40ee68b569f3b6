"""The image, built from this tree and run as a user would, with Docker and with Podman."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.distribution.conftest import ROOT
from tests.distribution.engines import IMAGE, Docker, NoEngine, podman
from tests.mcp_server.conftest import output_of
from tests.support.waiting import until

pytestmark = [pytest.mark.full, pytest.mark.root_only, pytest.mark.needs("docker")]

PROFILE = ROOT / "packaging" / "seccomp.json"
NATIVE = ("--security-opt", f"seccomp={PROFILE}", "--security-opt", "systempaths=unconfined")
WALLS = {"landlock": (), "native": NATIVE}
CLOSED = ("--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/tmp")
ADDED = runpy.run_path(str(ROOT / "packaging" / "seccomp.py"))["_ADDED"]
PROGRAMS = {"python": "print(6 * 7)", "node": "console.log(6 * 7)", "shell": "echo $((6 * 7))"}
CLIENT = Path(__file__).with_name("image_client.py")


@pytest.fixture(scope="module")
def engine() -> Docker:
    try:
        return Docker.of_the_whole_run()
    except NoEngine as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(engine: Docker) -> Path:
    return engine.folder


@pytest.fixture(scope="module")
def loaded(engine: Docker, folder: Path) -> None:
    """The image is Podman's, too."""
    archive = folder / "image.tar"
    engine.must("save", "--output", str(archive), IMAGE)
    done = podman(folder, "load", "--input", str(archive))
    archive.unlink()
    if done.returncode:
        pytest.skip(f"podman does not work here: {done.stderr[-600:]}")


@pytest.fixture(params=WALLS)
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """With which a container's cells have this wall."""
    return WALLS[request.param]


@pytest.fixture
def service(engine: Docker, options: tuple[str, ...]) -> Iterator[str]:
    """The name of a container with the service, once it is healthy; its volume has the same."""
    name = "casemate-service"
    options = ("--publish=127.0.0.1:8321:8321", f"--volume={name}:/state", "--health-interval=1s", *options, *CLOSED)
    engine.must("run", "--detach", "--name", name, *options, IMAGE)
    try:
        assert until(lambda: engine.must("inspect", "--format={{.State.Health.Status}}", name) == "healthy")
        yield name
    finally:
        engine("rm", "--force", "--volumes", name)
        engine("volume", "rm", name)


def doctor(run: Callable[..., subprocess.CompletedProcess[str]], *options: str) -> tuple[int, str, str]:
    """Its exit code, the wall of which everything was proved, and why there is no native one."""
    done = run("run", "--rm", "--network=none", *options, IMAGE, "doctor", "--format=json")
    assert done.stdout, done.stderr
    walls = json.loads(done.stdout)["walls"]
    proved = [
        wall["name"] for wall in walls if wall["available"] and all(one["held"] for one in wall["report"]["proofs"])
    ]
    return done.returncode, " ".join(proved), next(wall["reason"] for wall in walls if wall["name"] == "native")


def test_the_image_is_of_a_user_who_is_not_root_and_has_the_profile(engine: Docker) -> None:
    assert engine.must("run", "--rm", "--entrypoint=id", IMAGE, "-u") == "10001"
    place = "/usr/local/lib/casemate/seccomp.json"
    assert json.loads(engine.must("run", "--rm", "--entrypoint=cat", IMAGE, place)) == json.loads(PROFILE.read_text())


def test_with_nothing_special_there_is_the_landlock_wall_and_the_options_for_more_are_named(engine: Docker) -> None:
    for options in ((), CLOSED, ("--user=0",)):
        assert doctor(engine, *options) == (0, "landlock", "container_seccomp")
    told = engine.must("run", "--rm", IMAGE, "doctor")
    assert all(f"--security-opt {one}" in told for one in ("seccomp=seccomp.json", "systempaths=unconfined"))


def test_a_policy_that_wants_namespaces_refuses_programs_without_the_options(engine: Docker, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("isolation: {at_least: shared-kernel}\n")
    tmp_path.chmod(0o755)
    run = ["run", "--rm", "--interactive", f"--volume={tmp_path}:/policy:ro"]
    program = [IMAGE, "run", "-", "--policy=/policy/policy.yaml"]
    refused = engine(*run, *program, stdin=PROGRAMS["python"])
    assert (refused.returncode, refused.stdout) == (69, "")
    assert "--security-opt seccomp=seccomp.json" in refused.stderr
    assert engine(*run, *NATIVE, *program, stdin=PROGRAMS["python"]).stdout == "42\n"


def test_with_the_profile_everything_of_the_native_wall_is_proved(engine: Docker) -> None:
    assert doctor(engine, *NATIVE) == (0, "native landlock", "")
    assert doctor(engine, *NATIVE, *CLOSED) == (0, "native landlock", "")


def test_either_option_alone_is_not_enough_for_it(engine: Docker) -> None:
    assert doctor(engine, *NATIVE[:2]) == (0, "landlock", "masked_proc")
    assert doctor(engine, *NATIVE[2:]) == (0, "landlock", "container_seccomp")


@pytest.mark.parametrize("language", PROGRAMS)
def test_programs_of_every_language_run(engine: Docker, options: tuple[str, ...], language: str) -> None:
    run = ["run", "--rm", "--interactive", "--network=none", *options, *CLOSED, IMAGE]
    done = engine(*run, "run", "-", f"--language={language}", stdin=PROGRAMS[language])
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


@pytest.mark.parametrize("name", ADDED)
def test_no_program_runs_without_any_call_that_the_profile_adds(engine: Docker, tmp_path: Path, name: str) -> None:
    profile = json.loads(PROFILE.read_text())
    rules = [rule for rule in profile["syscalls"] if rule["names"] != [name]]
    (tmp_path / "less.json").write_text(json.dumps({**profile, "syscalls": rules}))
    options = [f"--security-opt=seccomp={tmp_path}/less.json", *NATIVE[2:], "--env=CASEMATE_ISOLATION=native"]
    run = ["run", "--rm", "--interactive", "--network=none", *options, IMAGE, "run", "-", "--allow=example.test"]
    done = engine(*run, stdin=PROGRAMS["python"])
    assert (done.returncode != 0, done.stdout) == (True, "")


def test_a_program_changes_a_folder_of_its_users(engine: Docker, options: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "old").write_text("old")
    for one in (tmp_path.parent, tmp_path, folder):
        one.chmod(0o755)
    subprocess.run(["chown", "-R", "12345:12345", folder], check=True)
    theirs = ["--user=12345:12345", f"--volume={folder}:/work", "--env=CASEMATE_WORKSPACE=/work"]
    program = "open('new', 'w').write(open('old').read())"
    done = engine("run", "--rm", "--interactive", *options, *theirs, IMAGE, "run", "-", stdin=program)
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


async def test_an_mcp_client_starts_a_container_of_its_own(engine: Docker, options: tuple[str, ...]) -> None:
    arguments = ["run", "--rm", "--interactive", "--network=none", *options, IMAGE, "serve"]
    server = StdioServerParameters(command="docker", args=arguments, env=engine.environ)
    async with Client(stdio_client(server)) as client:
        answer = await client.call_tool("execute_code", {"code": PROGRAMS["python"]})
    assert output_of(answer) == "42"


@pytest.mark.needs("podman")
def test_in_podman_the_same_options_give_the_same_wall(folder: Path, loaded: None) -> None:
    # What a container may open is said, as root may not raise its own limits everywhere; timers are systemd's.
    usual = ["--pull=never", "--no-healthcheck", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return podman(folder, arguments[0], *usual, *arguments[1:])

    assert doctor(run) == (0, "landlock", "masked_proc")
    assert doctor(run, *NATIVE) == (0, "native landlock", "")
    assert doctor(run, *NATIVE, *CLOSED[:3]) == (0, "native landlock", "")
