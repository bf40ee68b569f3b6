"""Metrics: of a service, as Prometheus's own parser reads them; of an application, as OpenTelemetry's SDK has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from tests.service.daemon import Daemon, environment, http, reserved_port, serving, tcp, unix

from casemate import Sandbox

FEW = {
    "kind": {"run", "step", "shell", "egress"}, "language": {"python", "shell"}, "start": {"exec", "zygote", "pool"},
    "status": {"ok", "failed", "timeout"}, "wall": {"native"}, "cause": {"timeout"}, "direction": {"in", "out"},
    "decision": {"allowed", "denied"},
}  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, int]]:
    """A service over TCP, too, and its port."""
    folder = tmp_path_factory.mktemp("s")
    with reserved_port() as port, serving(environment(folder), "--listen", f"127.0.0.1:{port}") as one:
        yield one, port


def families(text: bytes) -> dict[str, Any]:
    return {one.name: one for one in text_string_to_metric_families(text.decode())}


def value(found: dict[str, Any], name: str, **labels: str) -> float:
    """Of the samples of this name with these labels, together."""
    samples = (sample for family in found.values() for sample in family.samples)
    return float(sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items()))


async def test_the_service_tells_prometheus_what_was_run_and_what_goes_on(daemon: tuple[Daemon, int]) -> None:
    one, _ = daemon
    remote = await one.connect(namespace="tenant-of-many")
    await remote("runs.start", {"code": "print(1)", "wait": 60})
    await remote("runs.start", {"code": "while True: pass", "timeout": 0.2, "wait": 60})
    session = (await remote("sessions.open", {"language": "shell"}))["session"]
    await remote("runs.start", {"code": "false", "session": session, "wait": 60})
    await remote.close()
    with unix(one) as connection:
        status, headers, text = http(connection, "GET /metrics HTTP/1.1\nHost: localhost\nConnection: close")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = families(text)
    count = "casemate_execution_duration_seconds_count"
    assert value(found, count, kind="run", language="python", status="ok") == 1
    assert value(found, count, kind="run", language="python", status="timeout") == 1
    assert value(found, count, kind="step", language="shell", status="failed") == 1
    assert value(found, "casemate_start_duration_seconds_count", wall="native") == 3
    assert value(found, "casemate_queue_duration_seconds_count") == 3
    assert value(found, "casemate_limits_total", cause="timeout") == 1
    assert value(found, "casemate_sessions") == 1
    assert value(found, "casemate_running") == value(found, "casemate_waiting") == 0
    assert value(found, "casemate_cells_memory_bytes") > 0
    assert {"casemate_refusals", "casemate_egress_bytes", "casemate_approvals", "casemate_cells_ready"} <= found.keys()
    labels = {
        (name, word) for family in found.values() for sample in family.samples for name, word in sample.labels.items()
    }
    assert {(name, word) for name, word in labels if name != "le" and word not in FEW.get(name, ())} == set()
    assert b"tenant" not in text


def test_metrics_are_for_operators_and_for_a_token_that_opens_nothing_else(daemon: tuple[Daemon, int]) -> None:
    one, port = daemon

    def ask(token: str, line: str = "GET /metrics", *more: str) -> int:
        head = [f"{line} HTTP/1.1\nHost: localhost:{port}\nConnection: close", *more]
        with tcp(port) as connection:
            return http(connection, "\n".join([*head, *([f"Authorization: Bearer {token}"] if token else [])]))[0]

    scraper, agent, operator = (
        one.token(name, *options) for name, options in (("scraper", ("--metrics",)), ("a", ()), ("o", ("--operator",)))
    )
    assert [ask(token) for token in (scraper, operator, agent, "")] == [200, 200, 403, 401]
    others = ("POST /v1/stats", "POST /v1/runs/list", "GET /openapi.json", "POST /mcp", "PUT /v1/uploads")
    assert [ask(scraper, line) for line in others] == [403] * 5
    assert ask(scraper, "POST /v1/runs/list", "Casemate-As: agent:other") == 403


async def test_an_application_with_an_sdk_has_the_same_through_opentelemetry(
    reader: InMemoryMetricReader, tmp_path: Path
) -> None:
    async with Sandbox(
        audit=tmp_path / "audit.db", approve=lambda _: False, policy={"rules": [{"ask": "shell"}]}
    ) as sandbox:
        await sandbox.run("print(1)")
        async with sandbox.session("shell") as session:
            assert (await session.run("echo 1")).status == "denied"
            data = reader.get_metrics_data()
    assert data is not None
    found = {one.name: one for of in data.resource_metrics for scope in of.scope_metrics for one in scope.metrics}

    def points(name: str, label: str = "") -> dict[Any, Any]:
        return {(one.attributes or {}).get(label): one for one in found[f"casemate.{name}"].data.data_points}

    assert points("execution.duration", "kind")["run"].count == 1
    assert points("execution.duration", "status")["denied"].count == 1
    assert points("refusals", "kind")["shell"].value == 1
    assert points("approval.duration", "decision")["denied"].count == 1
    assert points("sessions")[None].value == 1
    assert found["casemate.execution.duration"].unit == "s"


RUN = """
import asyncio, json, sys
{first}
from casemate import Sandbox

async def main():
    async with Sandbox(audit={audit!r}) as sandbox:
        assert (await sandbox.run("print(1)")).ok

asyncio.run(main())
from casemate.telemetry import rows
loaded = [name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "prometheus_client")]
print(json.dumps([loaded, len(rows._going), [name for name in sys.modules if name.startswith("casemate.telemetry.")]]))
"""


@pytest.mark.parametrize("first", ["", "from opentelemetry import trace"])
def test_nothing_is_loaded_and_nothing_is_kept_where_nobody_wants_it(tmp_path: Path, first: str) -> None:
    program = RUN.format(first=first, audit=str(tmp_path / "audit.db"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, kept, own = json.loads(ran.stdout)
    assert kept == 0
    assert "casemate.telemetry.metrics" not in own
    if not first:
        assert loaded == []
        assert "casemate.telemetry.spans" not in own
