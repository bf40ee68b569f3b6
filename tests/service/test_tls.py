"""The service over TCP with TLS: who is trusted, who gets in, and that nothing is said to anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.network.servers import certified
from tests.service.daemon import Daemon, environment, http, reserved_port, serving, tcp

from casemate import Denied, InvalidArgument, Sandbox, Unavailable


@dataclass(frozen=True)
class Encrypted:
    """A service whose certificate is for ``localhost``, by an authority of the tests in ``authority``."""

    daemon: Daemon
    port: int
    authority: Path
    stranger: Path
    token: str

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("tls")
    certified(folder, names=("localhost",))
    certified(folder, prefix="other-", names=("localhost",))
    pem = str(folder / "server.pem")
    tls = ("--tls-cert", pem, "--tls-key", pem)
    with reserved_port() as port, serving(environment(folder), "--listen", f"127.0.0.1:{port}", *tls) as daemon:
        yield Encrypted(daemon, port, folder / "ca.pem", folder / "other-ca.pem", daemon.token("agent"))


@pytest.fixture
def trusting(encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch) -> Encrypted:
    """The same for a process that trusts its authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(encrypted.authority))
    return encrypted


async def test_a_client_that_trusts_its_authority_has_the_whole_facade(trusting: Encrypted) -> None:
    async with await Sandbox.connect(trusting.url, trusting.token) as sandbox:
        execution = await sandbox.run("open('left', 'w').write('left'); print(6 * 7)")
        assert execution.stdout == "42\n"
        assert execution.artifacts[0].read_bytes() == b"left"  # by a connection that blocks
        async with sandbox.session() as session:
            await session.run("x = 20")
            assert (await session.run("x + 1")).text == "21"


async def test_without_a_token_or_with_another_nobody_gets_in(trusting: Encrypted) -> None:
    with pytest.raises(InvalidArgument, match="needs one"):
        await Sandbox.connect(trusting.url)
    with pytest.raises(Denied):
        async with await Sandbox.connect(trusting.url, "no-token") as sandbox:
            await sandbox.run("print(1)")


@pytest.mark.parametrize("trusted", ["nobody", "another"])
async def test_a_certificate_of_an_authority_that_is_not_trusted_is_refused(
    encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch, trusted: str
) -> None:
    if trusted == "another":
        monkeypatch.setenv("SSL_CERT_FILE", str(encrypted.stranger))
    with pytest.raises(Unavailable, match="certificate") as refused:
        await Sandbox.connect(encrypted.url, encrypted.token)
    assert "SSL_CERT_FILE" in refused.value.remediation


async def test_a_certificate_of_another_name_is_refused(trusting: Encrypted) -> None:
    with pytest.raises(Unavailable, match="certificate"):
        await Sandbox.connect(f"https://127.0.0.1:{trusting.port}", trusting.token)


async def test_a_blocking_request_looks_at_the_certificate_as_well(
    trusting: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Sandbox.connect(trusting.url, trusting.token) as sandbox:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusting.stranger))
        with pytest.raises(Unavailable, match="certificate"):
            await asyncio.to_thread(sandbox.session)


async def test_what_is_no_tls_is_answered_by_nothing_and_hurts_nobody(trusting: Encrypted) -> None:
    with tcp(trusting.port) as plain, pytest.raises((OSError, IndexError)):
        http(plain, f"GET /v1/health HTTP/1.1\nHost: localhost:{trusting.port}")
    with pytest.raises(Unavailable):
        await Sandbox.connect(f"http://localhost:{trusting.port}", trusting.token)
    async with await Sandbox.connect(trusting.url, trusting.token) as sandbox:
        assert (await sandbox.run("print(1)")).ok
