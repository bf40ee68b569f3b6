"""Real clients inside, with and without a proxy: what is permitted works, what is not fails and says so."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.egress.stage import HAS_NSENTER, Stage

from casemate.egress.terms import PROXY

pytestmark = pytest.mark.skipif(not HAS_NSENTER, reason="nsenter (util-linux) runs programs in the network of the test")

HTTP_PROXY = f"http://{PROXY[0]}:{PROXY[1]}"
MODES = {
    "transparent": {},
    "CONNECT": {"http_proxy": HTTP_PROXY, "https_proxy": HTTP_PROXY},
    "SOCKS5": {"ALL_PROXY": f"socks5h://{PROXY[0]}:{PROXY[1]}"},
    "SOCKS5 with addresses": {"ALL_PROXY": f"socks5://{PROXY[0]}:{PROXY[1]}"},
}


@pytest.fixture
def web(stage: Stage, http_port: int, https_port: int) -> Stage:
    """good.test may be reached, evil.test would answer."""
    stage.allow("good.test")
    for name in ("good.test", "evil.test"):
        stage.internet.add(name, 80, http_port)
        stage.internet.add(name, 443, https_port)
    return stage


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("mode", MODES)
def test_curl_reaches_the_permitted_host_only(web: Stage, certified: Path, mode: str) -> None:
    def curl(*args: str) -> subprocess.CompletedProcess[str]:
        return web.inside.run("curl", "-sS", "-m", "60", "--cacert", str(certified), *args, env=MODES[mode])

    assert curl("http://good.test/a", "https://good.test/b").stdout == "GET good.test /a GET good.test /b "
    assert curl("-d", "sent", "https://good.test/").stdout.endswith("sent")
    assert curl("https://good.test/big", "-o", "/dev/null", "-w", "%{size_download}").stdout == str(1 << 20)
    assert curl("-f", "http://evil.test/").returncode != 0
    assert curl("-f", "https://evil.test/").returncode != 0
    assert curl("-f", "http://93.184.1.1/").returncode != 0
    assert curl("-f", "--connect-to", "evil.test:443:good.test:443", "https://evil.test/").returncode != 0
    assert web.internet.resolved == ["good.test"] * len(web.internet.resolved)


URLLIB = """
import sys, ssl, urllib.request, urllib.error
context = ssl.create_default_context(cafile=sys.argv[1])
for url in sys.argv[2:]:
    try:
        print(urllib.request.urlopen(url, timeout=60, context=context).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except urllib.error.URLError as error:
        print(error.reason)
"""


@pytest.mark.parametrize("mode", ["transparent", "CONNECT"])
def test_urllib_reaches_the_permitted_host_only_and_shows_why(web: Stage, certified: Path, mode: str) -> None:
    urls = ("http://good.test/a", "https://good.test/b", "http://evil.test/", "https://evil.test/")
    lines = web.inside.run(sys.executable, "-c", URLLIB, str(certified), *urls, env=MODES[mode]).stdout.splitlines()
    assert lines[:2] == ["GET good.test /a ", "GET good.test /b "]
    refused = " ".join(lines[2:])
    assert ("allowed_domains=['evil.test']" in refused) if mode == "CONNECT" else ("not known" in refused)


REQUESTS = """
import sys, requests
with requests.Session() as session:
    session.verify = sys.argv[1]
    for url in ("http://good.test/a", "https://good.test/b", "http://good.test/c"):
        print(session.get(url, timeout=60).text)
    print(session.get("http://evil.test/", timeout=60).status_code if len(sys.argv) > 2 else 403)
"""


@pytest.mark.parametrize("mode", ["transparent", "CONNECT"])
def test_requests_keeps_its_connections(web: Stage, certified: Path, mode: str) -> None:
    pytest.importorskip("requests")
    proxied = ["proxied"] if MODES[mode] else []
    done = web.inside.run(sys.executable, "-c", REQUESTS, str(certified), *proxied, env=MODES[mode])
    assert done.stdout.splitlines() == ["GET good.test /a ", "GET good.test /b ", "GET good.test /c ", "403"], (
        done.stderr
    )


WEBSOCKET = """
import sys
from websockets.sync.client import connect
with connect("ws://good.test/", proxy=None) as one:
    for text in ("hello", "x" * 100_000):
        one.send(text)
        print(one.recv() == text)
"""


def test_a_websocket_client_talks_through_the_door(stage: Stage) -> None:
    server = pytest.importorskip("websockets.sync.server")

    def echo(one: object) -> None:
        for text in one:  # type: ignore[attr-defined]
            one.send(text)  # type: ignore[attr-defined]

    stage.allow("good.test")
    with server.serve(echo, "127.0.0.1", 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        stage.internet.add("good.test", 80, serving.socket.getsockname()[1])
        done = stage.inside.run(sys.executable, "-c", WEBSOCKET)
        serving.shutdown()
        thread.join(60)
    assert done.stdout.split() == ["True", "True"], done.stderr


class GitBackend(BaseHTTPRequestHandler):
    """git-http-backend, as a web server runs it."""

    protocol_version = "HTTP/1.1"
    root: str

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length", "0"))
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": self.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        body = b"" if chunked else self.rfile.read(length)
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=env, check=False)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().splitlines():
            self.send_header(*line.split(": ", 1))
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def git_port(tmp_path: Path) -> Iterator[int]:
    """A server with one repository, /one.git."""
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x.test", "-C", str(tmp_path / "work")]
    subprocess.run(["git", "init", "-q", str(tmp_path / "work")], check=True)
    (tmp_path / "work" / "file").write_text("content" * 10_000)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(tmp_path / "work"), str(tmp_path / "one.git")], check=True)
    handler = type("Handler", (GitBackend,), {"root": str(tmp_path)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join(60)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("mode", ["transparent", "CONNECT", "SOCKS5"])
def test_git_clones_over_http(stage: Stage, git_port: int, tmp_path: Path, mode: str) -> None:
    stage.allow("good.test")
    stage.internet.add("good.test", 80, git_port)
    into = tmp_path / "clone"
    done = stage.inside.run("git", "clone", "-q", "http://good.test/one.git", str(into), env=MODES[mode])
    assert done.returncode == 0, done.stderr
    assert (into / "file").read_text() == "content" * 10_000
    denied = stage.inside.run("git", "ls-remote", "http://evil.test/one.git", env=MODES[mode])
    assert denied.returncode != 0


def test_datagrams_and_addresses_lead_nowhere(web: Stage) -> None:
    ports = ("80", "80", "80", str(next(iter(web.internet.servers.values()))))
    program = """
import socket, sys
for address in zip(("93.184.1.1", "10.0.0.1", "169.254.169.254", "127.0.0.1"), map(int, sys.argv[1:])):
    try:
        socket.create_connection(address, 3)
        print("reached", address)
    except OSError as error:
        print(error.errno)
"""
    said = web.inside.run(sys.executable, "-c", program, *ports).stdout.split()
    assert "reached" not in said
    assert len(said) == 4
    with (
        socket.socket(fileno=web.inside.datagrams("198.18.0.7", 0)) as one,
        pytest.raises(OSError, match="unreachable"),
    ):
        one.sendto(b"x", ("93.184.1.1", 53))
