"""The docker wall's pure parts: what a container may say, where its network lies, and what an engine's answer means."""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from casemate.egress import wire as dns
from casemate.errors import WallUnavailable
from casemate.model.limits import Limits
from casemate.supervisor import wire
from casemate.walls.docker import addresses, containers, engine, messages, refusal
from casemate.walls.docker.wall import _size_of

ENDING = {
    "wait_status": 0, "seconds": 0.1, "cpu_seconds": 0.1, "tasks": 1, "begun": 1, "reason": None, "peak_memory": 1,
    "oom": False, "space_left": 1, "inodes_left": 1,
}  # fmt: skip


def payload(*channels: list[Any], **message: Any) -> bytes:
    return wire.encode([message, list(channels)])


def test_a_message_of_the_right_shape_is_taken() -> None:
    message, channels = messages.check_message(payload(["content", 4], op="ended", id="c", ending=ENDING), "c")
    assert message == {"op": "ended", "id": "c", "ending": ENDING}
    assert channels == [("content", 4)]


@pytest.mark.parametrize(
    "said",
    [
        payload(op="ended", id="another", ending=ENDING),
        payload(op="ended", id="c", ending={**ENDING, "oom": 1}),
        payload(op="ended", id="c", ending={**ENDING, "reason": "because"}),
        payload(op="ended", id="c", ending={**ENDING, "seconds": float("inf")}),
        payload(op="ended", id="c", ending={**ENDING, "more": 1}),
        payload(op="ended", id="c"),
        payload(op="ready", id="c"),
        payload(op=["ended"], id="c"),
        payload(["content", 4], op="shown", id="c", number=1, errno=0),
        payload(["tcp", 4], op="ended", id="c", ending=ENDING),
        payload(["read", -1], ["read", 4], op="pipes", id="c", step=1),
        payload(op="launch refused", id="c", stage="x", errno=0, detail="x" * 9999),
        wire.encode({"op": "ended"}),
        b"nonsense",
    ],
)
def test_what_no_honest_supervisor_says_is_refused(said: bytes) -> None:
    with pytest.raises(ValueError):
        messages.check_message(said, "c")


def test_the_cell_network_lies_on_the_loopback_of_the_container() -> None:
    assert addresses.to_container("198.18.0.1") == "127.76.0.1"
    assert addresses.to_container("198.19.255.254") == "127.77.255.254"
    assert addresses.to_container("127.0.0.1") == "127.0.0.1"


def test_a_resolvers_answer_names_the_address_in_the_container() -> None:
    query = dns.parse_query(b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01")
    answer = addresses.answer_to_container(dns.answer_query(query, address="198.18.1.7", ttl=5))
    assert answer == dns.answer_query(query, address="127.76.1.7", ttl=5)
    none = dns.answer_query(query, dns.NO_SUCH_NAME)
    assert addresses.answer_to_container(none) == none


def test_a_container_has_no_network_no_capability_and_hard_limits() -> None:
    limits = Limits(memory=1 << 28, processes=10, disk=1 << 20)
    host = containers.describe(containers.ContainerTerms("image"), _size_of(limits))["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["ReadonlyRootfs"]) == ("none", ["ALL"], True)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert {"/sys", "/proc/kallsyms", "/proc/key-users"} <= set(host["MaskedPaths"])
    assert host["Memory"] == host["MemorySwap"] == (1 << 28) + (1 << 20) + (64 << 20)
    assert host["PidsLimit"] == 12
    assert "size=1048576," in host["Tmpfs"]["/workspace"]


def test_each_container_has_a_user_of_its_own_that_an_engine_with_a_user_namespace_has() -> None:
    limits = _size_of(Limits())
    plain, mapped = (containers.ContainerTerms("image", maps_users=is_mapped) for is_mapped in (False, True))
    users = {containers.describe(plain, limits)["User"] for _ in range(20)}
    assert len(users) == 20
    assert all(0x70000000 <= int(user.split(":")[0]) < 0x7FFFFFFF for user in users)
    assert int(containers.describe(mapped, limits)["User"].split(":")[0]) < 1 << 16


class FakeEngine(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, object]]] = {}

    def do_GET(self) -> None:
        status, value = self.answers.get(self.path.partition("?")[0], (404, {"message": "no such thing"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[engine.Engine]:
    server = HTTPServer(("127.0.0.1", 0), FakeEngine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    FakeEngine.answers = {"/info": (200, {"Runtimes": {"runc": {}}}), "/images/there/json": (200, {"Id": "1"})}
    yield engine.Engine(f"tcp://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("options", "maps_users"), [([], False), (["name=seccomp", "name=rootless"], True)])
def test_an_engine_with_image_and_runtime_is_taken(fake: engine.Engine, options: list[str], maps_users: bool) -> None:
    FakeEngine.answers["/info"] = (200, {"Runtimes": {"runc": {}}, "SecurityOptions": options})
    FakeEngine.answers["/images/there/json"] = (200, {"Config": {"Volumes": {"/state": {}}}})
    terms = refusal.check(fake, containers.ContainerTerms("there", "runc"))
    assert terms == containers.ContainerTerms("there", "runc", maps_users, ("/state",))
    assert containers.describe(terms, _size_of(Limits()))["HostConfig"]["Tmpfs"]["/state"][:3] == "ro,"


@pytest.mark.parametrize(
    ("terms", "reason", "command"),
    [
        (containers.ContainerTerms("missing"), "no_image", "docker build"),
        (containers.ContainerTerms("there", "runsc"), "no_runtime", "apt-get install runsc"),
    ],
)
def test_what_an_engine_lacks_is_named_with_the_command_that_helps(
    fake: engine.Engine, terms: containers.ContainerTerms, reason: str, command: str
) -> None:
    with pytest.raises(WallUnavailable) as refused:
        refusal.check(fake, terms)
    assert refused.value.reason == reason
    assert command in str(refused.value.remediation)


def test_podman_is_refused_with_what_its_containers_lack(fake: engine.Engine) -> None:
    FakeEngine.answers["/info"] = (200, {"Runtimes": {"runc": {}}, "BuildahVersion": "1.28.2"})
    with pytest.raises(WallUnavailable) as refused:
        refusal.check(fake, containers.ContainerTerms("there"))
    assert refused.value.reason == "podman"
    assert "docker.io" in str(refused.value.remediation)


@pytest.mark.parametrize("address", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_an_engine_that_is_not_there_is_named_with_the_command_that_starts_it(address: str) -> None:
    with pytest.raises(WallUnavailable) as refused:
        refusal.check(engine.Engine(address), containers.ContainerTerms("image"))
    assert refused.value.reason == "no_engine"
    assert "systemctl start docker" in str(refused.value.remediation)


def test_an_address_that_cannot_be_used_is_refused_with_what_can() -> None:
    with pytest.raises(WallUnavailable) as refused:
        engine.find({"DOCKER_HOST": "ssh://host"})
    assert "ssh -nNT -L" in str(refused.value.remediation)


def test_a_container_that_does_not_start_leaves_no_connection() -> None:
    near, far = socket.socketpair()

    class Refusing(engine.Engine):
        def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
            if path.endswith("/start"):
                raise OSError(errno.EMFILE, "too many open files")
            return {"Id": "c"}

        def attach(self, container: str) -> tuple[socket.socket, bytes]:
            return near, b""

    with far, pytest.raises(OSError, match="too many"):
        containers.Container(Refusing("unix:///none"), containers.ContainerTerms("image"), _size_of(Limits()))
    assert near.fileno() == -1
