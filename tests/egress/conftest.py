"""A network like a cell's for each file, an egress proxy for each test, servers and certificates for all."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.egress.servers import certificate, echo, listening, serving_tls, web
from tests.egress.stage import Inside, Stage


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Inside]:
    """A network namespace with nothing in it."""
    one = Inside(tmp_path)
    yield one
    one.close()


@pytest.fixture
def neighbour(stage: Stage, tmp_path: Path) -> Iterator[Inside]:
    """Another cell of the same egress proxy."""
    (tmp_path / "neighbour").mkdir()
    one = Inside(tmp_path / "neighbour")
    yield one
    one.close()


@pytest.fixture
def stage(inside: Inside) -> Iterator[Stage]:
    """An egress proxy that is not yet open."""
    one = Stage(inside)
    yield one
    one.close()


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for good.test and evil.test, its own authority."""
    return certificate(tmp_path_factory.mktemp("tls"), "good.test", "evil.test", "x.good.test")


@pytest.fixture(scope="session")
def http_port() -> Iterator[int]:
    with web() as port:
        yield port


@pytest.fixture(scope="session")
def https_port(certified: Path) -> Iterator[int]:
    with web(serving_tls(certified)) as port:
        yield port


@pytest.fixture(scope="session")
def echo_port() -> Iterator[int]:
    with listening(echo) as port:
        yield port


@pytest.fixture
def trusting(certified: Path) -> ssl.SSLContext:
    """For clients: it trusts the servers here."""
    return ssl.create_default_context(cafile=str(certified))
