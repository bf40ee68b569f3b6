"""A service in which there is something to see on every page of the console, and the way to each page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.console.browser import Page
from tests.console.conftest import call
from tests.service.daemon import ASKS, Daemon, environment, serving
from tests.support.waiting import until

PLOT = """
import csv, json
rows = [('north', 12), ('east', 30), ('south', 21), ('west', 17)]
with open('sales.csv', 'w') as file:
    csv.writer(file).writerows([('region', 'orders'), *rows])
bars = ''.join(
    f'<rect x="{20 + 90 * n}" y="{150 - 4 * count}" width="60" height="{4 * count}" fill="#3b82c4"/>'
    f'<text x="{50 + 90 * n}" y="170" font-size="14" text-anchor="middle">{name}</text>'
    for n, (name, count) in enumerate(rows)
)
from IPython.display import HTML, JSON, SVG, display
display(SVG(f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="180">{bars}</svg>'))
cells = ''.join(f'<tr><td>{name}</td><td>{count}</td></tr>' for name, count in rows)
display(HTML(f'<table><thead><tr><th>region</th><th>orders</th></tr></thead><tbody>{cells}</tbody></table>'))
total = sum(count for _, count in rows)
print('total', total)
"""
REFUSED = """
# Fetch the exchange rates.
import socket
for host in ('rates.example.test', 'telemetry.example.test'):
    try:
        socket.create_connection((host, 443), 20).recv(1)
    except OSError as error:
        print(host, error)
"""
COMMAND = "files = get_ipython().getoutput('wc -l sales.csv')"


@contextmanager
def seeded_service() -> Iterator[Daemon]:
    """A service whose policy asks about commands and hosts."""
    with TemporaryDirectory(prefix="casemate-console-") as name:
        policy = Path(name) / "policy.json"
        policy.write_text(ASKS)
        with serving({**environment(Path(name)), "CASEMATE_POLICY": str(policy)}) as daemon:
            yield daemon


@dataclass(frozen=True)
class Seeds:
    session: str
    run: str
    refused: str


def refuse(daemon: Daemon, run: str) -> None:
    """Deny whatever a run asks, until it is over."""

    def is_over() -> bool:
        for request in call(daemon, "approvals.pending"):
            if request["run"] == run:
                call(daemon, "approvals.decide", request=request["id"], allow=False)
        return bool(call(daemon, "runs.get", run=run)["status"] == "done")

    until(is_over)


def seed(daemon: Daemon) -> Seeds:
    """Runs, a session that waits for an answer, and what was refused."""
    session = call(daemon, "sessions.open", name="analysis")["session"]
    call(daemon, "runs.wait", run=call(daemon, "runs.start", code=PLOT, session=session)["run"])
    refused = call(daemon, "runs.start", code=REFUSED)["run"]
    refuse(daemon, refused)
    call(daemon, "runs.wait", run=call(daemon, "runs.start", code="print('hello')")["run"])
    call(daemon, "runs.wait", run=call(daemon, "runs.start", code="raise ValueError('no such region')")["run"])
    run = call(daemon, "runs.start", code=COMMAND, session=session)["run"]
    until(lambda: call(daemon, "approvals.pending"), "what the session asks")
    return Seeds(session, run, refused)


@dataclass(frozen=True)
class Place:
    """A page: ``address`` of it, and ``sign``, a selector of what is there when it is shown whole."""

    address: Callable[[Seeds], str]
    sign: str

    def show(self, page: Page, seeds: Seeds) -> None:
        page.evaluate("address => { location.hash = address }", self.address(seeds))
        page.locator(self.sign).first.wait_for()


PLACES = {
    "approvals": Place(lambda _: "#/approvals", "article.request"),
    "runs": Place(lambda _: "#/runs", "tbody tr"),
    "run": Place(lambda seeds: f"#/runs/{seeds.refused}", ".timeline"),
    "session": Place(lambda seeds: f"#/runs/session/{seeds.session}", ".execution iframe.given"),
    "crossings": Place(lambda _: "#/crossings", "section.card table"),
    "policy": Place(lambda seeds: f"#/crossings/{seeds.refused}", "pre"),
    "record": Place(lambda _: "#/record", "table.record tbody tr"),
    "health": Place(lambda _: "#/health", ".charts canvas >> nth=3"),
}
