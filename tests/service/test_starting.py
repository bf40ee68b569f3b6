"""Services that commands start when they need one."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.service.daemon import Daemon, casemate_command, is_service, on_demand, reserved_port, serving
from tests.support.waiting import MAX_WAIT, until

import casemate
from casemate.errors import Unavailable
from casemate.remote.client import RemoteOperations, connect
from casemate.remote.environment import environment_of_service
from casemate.remote.fingerprints import fingerprints
from casemate.remote.places import LOG, places_of, read_running
from casemate.surfaces.cli.service import options

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
ASK = """
import asyncio, os
from casemate.remote.client import connect
async def main():
    remote = await connect()
    print((await remote.health())["status"], flush=True)
    await remote.close()
asyncio.run(main())
"""
CONNECT = """
import asyncio
from casemate.remote.client import connect
async def main():
    await (await connect()).close()
asyncio.run(main())
"""
CONNECTED = """
from casemate.sync import Sandbox
with Sandbox.connect() as sandbox, sandbox.session() as session:
    print(session.run("1 + 1").text)
"""


def pid_of(env: dict[str, str]) -> int:
    return int(read_running(places_of(env).state)["pid"])


def test_many_commands_that_start_at_once_start_one_service(env: dict[str, str]) -> None:
    with on_demand(env):
        asking = [
            subprocess.Popen([sys.executable, "-c", ASK], env=env, stdout=subprocess.PIPE, text=True) for _ in range(6)
        ]
        said = [one.communicate(timeout=2 * MAX_WAIT)[0] for one in asking]
        assert said == ["ok\n"] * 6
        log = (places_of(env).state / LOG).read_text()
        assert log.count('"event": "listening"') == 1
        assert is_service(pid_of(env))


def test_the_service_outlives_whoever_started_it_and_has_no_terminal_of_its(env: dict[str, str]) -> None:
    with on_demand(env):
        subprocess.run([sys.executable, "-c", ASK], env=env, check=True, stdout=subprocess.DEVNULL, timeout=MAX_WAIT)
        pid = pid_of(env)
        assert is_service(pid)
        assert os.getsid(pid) == pid
        assert "ok" in Daemon(env).command("service", "status").stdout


def test_nothing_that_a_command_had_open_stays_open_in_the_service(env: dict[str, str], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    with on_demand(env):
        subprocess.run([sys.executable, "-c", ASK], env=env, check=True, stdout=subprocess.DEVNULL, close_fds=False)
        os.close(write)
        assert is_service(pid_of(env))
        assert os.read(read, 1) == b"", "the service holds what its starter's caller had open"
    os.close(read)


def test_the_service_gets_no_secret_of_the_shell_that_started_it(env: dict[str, str]) -> None:
    secrets = {
        "CASEMATE_SECRET_DEFAULT_TOKEN": "hidden-value", "AWS_SECRET_ACCESS_KEY": "hidden-value",
        "HTTPS_PROXY": "http://user:hidden-value@proxy.test", "PIP_INDEX_URL": "https://u:hidden-value@index.test",
        "SSH_AUTH_SOCK": "/hidden-value", "LD_PRELOAD": "/hidden-value", "PYTHONSTARTUP": "/hidden-value",
        "CASEMATE_SERVE_TOKEN": "hidden-value", "CASEMATE_TOKEN": "hidden-value",
    }  # fmt: skip
    with on_demand(env):
        shell = {**env, **secrets, "LD_PRELOAD": ""}
        subprocess.run([sys.executable, "-c", ASK], env=shell, check=True, stdout=subprocess.DEVNULL, timeout=MAX_WAIT)
        given = Path(f"/proc/{pid_of(env)}/environ").read_bytes()
        assert b"hidden-value" not in given
        assert b"XDG_STATE_HOME" in given
        assert fingerprints({**env, **secrets}) == fingerprints(env)  # so no other service is wanted
    kept = environment_of_service({**env, **secrets, "LC_ALL": "C.UTF-8", "CASEMATE_NETWORK": "none"})
    assert kept.keys() == {*env, "LC_ALL", "CASEMATE_NETWORK"}


async def test_a_variable_that_is_wrong_is_told_to_whoever_uses_the_service(env: dict[str, str]) -> None:
    wrong = {**env, "CASEMATE_LIMITS_MEMRY": "1GiB"}
    with on_demand(env), pytest.raises(Unavailable, match="CASEMATE_LIMITS_MEMRY"):
        await connect(environ=wrong)


async def test_a_service_that_cannot_read_what_it_keeps_says_so_to_whoever_started_it(env: dict[str, str]) -> None:
    state = places_of(env).state
    state.mkdir(mode=0o700, parents=True)
    (state / "state.db").write_text("no database" * 100)
    with pytest.raises(Unavailable, match=r"state\.db"):
        await connect(environ=env)


async def test_an_idle_service_of_another_version_is_replaced(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_demand(env):
        await (await connect(environ=env)).close()
        first = pid_of(env)
        monkeypatch.setattr("casemate.remote.client.__version__", "99.0")
        with pytest.raises(Unavailable, match=r"is casemate \d.*but this is 99.0"):  # which the new one is not, either
            await connect(environ=env)
        assert not is_service(first)


async def test_a_service_of_another_version_in_which_something_lives_is_left_alone(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_demand(env):
        remote = await connect(environ=env)
        await remote("sessions.open")
        first = pid_of(env)
        monkeypatch.setattr("casemate.remote.client.__version__", "99.0")
        with pytest.raises(Unavailable, match="casemate service stop"):
            await connect(environ=env)
        assert is_service(first)
        assert len(await remote("sessions.list")) == 1
        await remote.close()


@pytest.mark.parametrize("agent", [None, "an MCP client"])
async def test_programs_find_the_packages_of_who_runs_them_unless_another_installations_service_is_in_use(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, agent: str | None
) -> None:
    with on_demand(env):
        await (await connect(environ=env)).close()
        first = pid_of(env)
        monkeypatch.setattr("casemate.remote.client.INSTALLATION", "/of/another 1")
        await (await connect(environ=env)).close()
        assert pid_of(env) == first
        remote = await connect(environ=env, runs=True, agent=agent)
        assert pid_of(env) != first
        await remote("sessions.open")
        second = pid_of(env)
        await (await connect(environ=env, runs=True, agent=agent)).close()
        assert pid_of(env) == second
        await remote.close()


async def test_a_service_that_was_set_otherwise_is_not_used_as_if_it_were_not(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        remote = await daemon.connect()
        await remote("sessions.open")
        with pytest.raises(Unavailable, match="another value of CASEMATE_NETWORK"):
            await connect(environ={**env, "CASEMATE_NETWORK": "none"})
        await remote.close()
        await (await connect(environ={**env, "CASEMATE_SECRET_DEFAULT_X": "12345678"})).close()


def test_runs_of_another_installation_are_listed_with_its_folder(env: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    packages = "\n".join(path for path in sys.path if path.endswith("-packages"))
    next(Path(other, "lib").glob("python*/site-packages"), other).joinpath("others.pth").write_text(packages)
    owners = []
    with on_demand(env):
        for python in (str(other / "bin" / "python"), sys.executable):
            command = [python, *casemate_command()[1:]]
            subprocess.run([*command, "exec", "-", "1"], env=env, capture_output=True, check=True, timeout=MAX_WAIT)
            listed = subprocess.run([*command, "ps", "--all"], env=env, capture_output=True, text=True, check=True)
            owners.append([line.split("\t")[-1] for line in listed.stdout.splitlines()])
    assert owners == [["user"], [f"user of {other}", "user"]]


async def test_programs_do_not_get_the_variables_of_another_shell(env: dict[str, str]) -> None:
    other = {**env, "CASEMATE_NETWORK": "public"}
    with on_demand(other):
        remote = await connect(environ=other)
        await remote("sessions.open")
        with pytest.raises(Unavailable, match="another value of CASEMATE_NETWORK"):
            await connect(environ=env, runs=True)
        await (await connect(environ=env)).close()  # such as to answer what programs ask
        await remote.close()
    with serving(other):
        await (await connect(environ=env, runs=True)).close()


def test_sessions_open_where_their_steps_can_run_once_casemate_was_installed_again(
    env: dict[str, str], tmp_path: Path
) -> None:
    def install() -> None:
        if (tmp_path / "casemate").exists():
            (tmp_path / "casemate").rename(tmp_path / f"gone {len(list(tmp_path.iterdir()))}")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(casemate.__file__).parent, tmp_path / "casemate", ignore=ignored)

    def ran(*words: str) -> tuple[int, str]:
        command = casemate_command(*words) if words else [sys.executable, "-c", CONNECTED]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=MAX_WAIT)
        return done.returncode, done.stdout + done.stderr

    env["PYTHONPATH"] = str(tmp_path)
    install()
    with on_demand(env):
        assert ran("sessions", "open", "first")[0] == ran("sessions", "close", "first")[0] == 0
        install()
        assert ran() == (0, "2\n")
        install()
        assert ran("sessions", "open", "second")[0] == 0
        assert ran("exec", "second", "print(2)") == (0, "2\n")
        install()
        code, said = ran("sessions", "open", "third")
        assert (code, "reinstalled while" in said, "service stop" in said) == (69, True, True), said


def test_a_service_that_may_open_too_few_files_says_so_when_it_starts(env: dict[str, str]) -> None:
    for most in (48, 64, 200):
        words = [f'ulimit -n {most}; exec "$@"', "sh", *casemate_command("service")]
        ran = subprocess.run(
            ["sh", "-c", *words], env=env, capture_output=True, text=True, check=False, timeout=MAX_WAIT
        )
        assert (ran.returncode, f"{most} files at once (RLIMIT_NOFILE)" in ran.stderr) == (69, True), ran.stderr


async def test_a_service_whose_installation_is_gone_says_so(env: dict[str, str], tmp_path: Path) -> None:
    package = Path(casemate.__file__).parent
    shutil.copytree(package, tmp_path / "casemate", ignore=shutil.ignore_patterns("__pycache__"))
    with serving({**env, "PYTHONPATH": str(tmp_path)}) as daemon:
        remote = await daemon.connect()
        assert await remote("runs.list") == []
        (tmp_path / "casemate").rename(tmp_path / "gone")
        with pytest.raises(Unavailable, match="removed or reinstalled"):
            await remote("audit.verify")
        await remote.close()


async def test_a_command_with_another_state_folder_is_not_answered_from_the_first(env: dict[str, str]) -> None:
    other = Path(env["HOME"], "state")
    with serving(env) as daemon:
        remote = await daemon.connect()
        await remote("sessions.open")
        with pytest.raises(Unavailable, match="another value of the state folder"):
            await connect(environ={**env, "XDG_STATE_HOME": str(other)})
        await remote.close()


async def test_a_configuration_file_that_has_changed_since_is_not_passed_over(env: dict[str, str]) -> None:
    folder = Path(env["HOME"], ".config", "casemate")
    folder.mkdir(parents=True)
    with serving(env) as daemon:
        remote = await daemon.connect()
        await remote("sessions.open")
        (folder / "config.yaml").write_text("sandbox:\n  concurrency: 3\n")
        with pytest.raises(Unavailable, match="another value of the configuration file"):
            await connect(environ=env)
        (folder / "config.yaml").unlink()
        await (await connect(environ=env)).close()
        await remote.close()


async def test_without_being_asked_to_nothing_is_started(env: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match="casemate service"):
        await connect(environ=env, start=False)
    assert not places_of(env).state.exists()
    assert Daemon(env).command("service", "status", check=False).returncode == 69


async def test_a_connection_goes_on_with_the_next_service_when_one_has_ended(env: dict[str, str]) -> None:
    with on_demand(env):
        remote = await connect(environ=env)
        assert await remote("runs.list") == []
        os.kill(first := pid_of(env), signal.SIGTERM)
        await asyncio.to_thread(until, lambda: not is_service(first))
        state = await remote("runs.start", {"code": "print('again')", "wait": 30.0})
        assert state["execution"]["stdout"] == "again\n"
        assert pid_of(env) != first
        await remote.close()


def test_an_idle_service_ends_by_itself_and_one_with_a_session_does_not(env: dict[str, str]) -> None:
    idle = 4.0  # seconds: also on a busy machine a client has connected by then
    with serving(env, "--idle-stop", str(idle)) as daemon:

        async def busy(remote: RemoteOperations) -> None:
            opened = await remote("sessions.open")
            await asyncio.sleep(idle + 1)
            assert daemon.process is not None
            assert daemon.process.poll() is None
            await remote("sessions.close", {"session": opened["session"]})

        daemon.ask(busy)
        assert daemon.ended() == 0
        assert not daemon.socket.exists()


@pytest.mark.parametrize("how", ["variable", "file"])
def test_a_service_that_a_command_starts_stops_being_idle_as_it_is_configured(env: dict[str, str], how: str) -> None:
    if how == "variable":
        env = {**env, "CASEMATE_SERVICE_IDLE_STOP": "1"}
    else:
        file = Path(env["HOME"]) / "config.yaml"
        file.write_text("service: {idle_stop: 1}\n")
        env = {**env, "CASEMATE_CONFIG": str(file)}
    with on_demand(env):
        subprocess.run([sys.executable, "-c", CONNECT], env=env, check=True, timeout=MAX_WAIT)
        pid = pid_of(env)
        until(lambda: not is_service(pid), "it takes no notice of what is configured")


def test_a_service_that_a_command_starts_ends_by_itself_where_nothing_is_configured() -> None:
    given = options({"idle_stop": None, "drain": None}, on_demand=True)
    assert (given["idle_stop"], options({"idle_stop": 5.0}, on_demand=True)["idle_stop"]) == (900.0, 5.0)
    assert "idle_stop" not in options({"idle_stop": None}, on_demand=False)


def test_stop_ends_it_and_is_harmless_where_none_runs(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        daemon.command("service", "stop")
        assert daemon.ended() == 0
        daemon.command("service", "stop")


def test_its_log_holds_no_program_and_no_secret(env: dict[str, str]) -> None:
    with serving(env) as daemon:

        async def use(remote: RemoteOperations) -> None:
            await remote("vault.set", {"name": "TOKEN", "value": "a-secret-value"})
            await remote("runs.start", {"code": "print('of-the-program')", "secrets": ["TOKEN"], "wait": 30.0})
            for wrong in ({"code": "print('of-the-program')", "extra": "a-secret-value"}, {"cod": 1}):
                with pytest.raises(Exception, match=r"argument|required"):
                    await remote("runs.start", wrong)
            await remote.request("POST", "/v1/of-the-program/x?y=a-secret-value", b"{}")

        daemon.ask(use)
        text = daemon.command("service", "logs").stdout
        assert len([json.loads(line) for line in text.splitlines()]) >= 3
        assert "a-secret-value" not in text
        assert '"runs/start"' in text or "/v1/runs/start" in text
        assert "print(" not in text
        assert daemon.process is not None


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from casemate.surfaces.http import daemon as logbook

    monkeypatch.setattr(logbook, "MOST_BYTES", 2000)
    (tmp_path / "log").mkdir(mode=0o700)
    book = logbook.Logbook(tmp_path / "log")
    for number in range(300):
        book.emit(logging.LogRecord("x", logging.INFO, "", 0, f"line {number}", None, None))
    book.close()
    files = sorted(one.name for one in (tmp_path / "log").iterdir())
    assert files == ["service.log", "service.log.1"]
    assert sum((tmp_path / "log" / one).stat().st_size for one in files) < 5000
    assert "line 299" in (tmp_path / "log" / "service.log").read_text()


def test_a_log_that_cannot_be_opened_ends_nobody_and_goes_on_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is while connections have taken all descriptors: what is logged then must not be the service's end."""
    from casemate.surfaces.http import daemon as logbook

    def emit(text: str) -> None:
        book.emit(logging.LogRecord("x", logging.INFO, "", 0, text, None, None))

    monkeypatch.setattr(logbook, "MOST_BYTES", 50)
    folder = tmp_path / "log"
    folder.mkdir(mode=0o700)
    book = logbook.Logbook(folder)
    emit("before")
    folder.chmod(0o755)  # so it is not opened
    emit("lost")
    folder.chmod(0o700)
    emit("after")
    book.close()
    assert "before" in (folder / "service.log.1").read_text()
    assert "after" in (folder / "service.log").read_text()


def test_a_port_that_the_system_chose_is_said(env: dict[str, str]) -> None:
    words = ["service", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(casemate_command(*words), env=env, stderr=subprocess.PIPE, text=True, cwd="/") as service:
        assert service.stderr is not None
        said = service.stderr.readline()
        connection = http.client.HTTPConnection("127.0.0.1", int(said.rpartition(":")[2]), timeout=MAX_WAIT)
        connection.request("GET", "/v1/health")
        assert connection.getresponse().status in (200, 401)
        connection.close()
        service.terminate()


def test_the_command_says_what_it_is_told_wrongly(env: dict[str, str]) -> None:
    daemon = Daemon(env)
    for words, said in (
        (["--listen", "0.0.0.0:0"], "--plain-http"),
        (["--listen", "somewhere"], "HOST:PORT"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--idle-stop", "-1"], "idle-stop"),
    ):
        ran = subprocess.run(
            casemate_command("service", *words), env=env, capture_output=True, text=True, check=False, timeout=MAX_WAIT
        )
        assert ran.returncode == 2, ran.stderr
        assert said in ran.stderr
    assert until(lambda: not daemon.socket.exists())


def test_the_example_of_the_documentation_does_what_it_says(env: dict[str, str]) -> None:
    root = Path(__file__).resolve().parents[2]
    example = root / "examples" / "service.py"
    assert f"```python\n{example.read_text()}```\n" in (root / "docs" / "how-to" / "service.md").read_text()
    with on_demand(env):
        ran = subprocess.run(
            [sys.executable, example], env=env, capture_output=True, text=True, timeout=2 * MAX_WAIT, check=False
        )
        assert (ran.stderr, ran.stdout) == ("", "4\n21\nstill here\n")


def test_the_unit_is_one_that_systemd_understands(env: dict[str, str], tmp_path: Path) -> None:
    text = Daemon(env).command("service", "unit").stdout
    assert f"ExecStart={sys.executable} -P -m casemate service" in text
    assert not any(line.startswith(("RestrictNamespaces", "PrivateUsers", "ProtectProc")) for line in text.splitlines())
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    (tmp_path / "casemate.service").write_text(text)
    ran = subprocess.run(
        [verify, "verify", "--user", tmp_path / "casemate.service"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "casemate.service" not in ran.stderr, ran.stderr


def test_the_image_starts_a_service_that_its_health_check_finds(env: dict[str, str]) -> None:
    lines = (PACKAGING / "Dockerfile").read_text().splitlines()
    said = dict(line.split(" ", 1) for line in lines if line.startswith(("ENTRYPOINT", "CMD", "HEALTHCHECK")))
    words = [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"])]
    check = [sys.executable, "-m", *json.loads(said["HEALTHCHECK"].removeprefix("CMD "))]
    with reserved_port() as port:
        assert words[:2] == ["casemate", "service"]
        with serving(env, *(word.replace("0.0.0.0:8321", f"127.0.0.1:{port}") for word in words[2:])):
            assert subprocess.run(check, env=env, capture_output=True, check=False, timeout=MAX_WAIT).returncode == 0
        gone = subprocess.run(check, env=env, capture_output=True, check=False, timeout=MAX_WAIT)
        assert gone.returncode == 69


def test_the_manifest_for_kubernetes_starts_a_service_that_its_probes_find(env: dict[str, str]) -> None:
    documents = yaml.safe_load_all((PACKAGING / "kubernetes.yaml").read_text())
    pod = next(one for one in documents if one["kind"] == "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    with reserved_port() as port:
        first, *options = (word.replace("0.0.0.0:8321", f"127.0.0.1:{port}") for word in container["args"])
        assert first == "service"
        with serving(env, *options):
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe]["httpGet"]
                (header,) = asked["httpHeaders"]
                headers = {header["name"]: header["value"].replace("8321", str(port))}
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)
                connection.request("GET", asked["path"], headers=headers)
                assert (asked["port"], connection.getresponse().status) == (8321, 200)
                connection.close()
