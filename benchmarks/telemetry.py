"""The cost of telemetry: whole processes with and without OpenTelemetry's API, and warm runs.

The runs take turns with nothing loaded, with the API but no SDK, and with an SDK that takes every span and metric and
exports nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from opentelemetry import metrics as api_metrics
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from benchmarks import measure, ready
from benchmarks.measure import Goal, Thing
from casemate import Sandbox
from casemate.telemetry import metrics, spans

_HIDE = "import sys\nfor one in ('opentelemetry', 'prometheus_client'):\n    sys.modules[one] = None\n"
_LOADED = {"opentelemetry.trace": trace, "opentelemetry.metrics": api_metrics, "casemate.telemetry.metrics": metrics}


def main() -> None:
    run = measure.Run("telemetry", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-telemetry-") as folder:
        _processes(run, Path(folder))
        with asyncio.Runner() as runner:
            runs = _runs(runner, folder)
            run.compare("a warm run", measure.in_turn(runs, run.rounds(300), {"API, no SDK": Goal(1.05)}))
    run.finish()


def _processes(run: measure.Run, folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(_HIDE)
    hello = folder / "hello.py"
    hello.write_text("print('hello')\n")
    here = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache", "XDG_STATE_HOME": f"{folder}/state"}
    hidden = {**here, "PYTHONPATH": f"{folder}:{here.get('PYTHONPATH', '')}"}
    for title, words in {"import casemate": ["-c", "import casemate"],
                         "casemate run hello.py": ["-m", "casemate", "run", str(hello)]}.items():  # fmt: skip
        things: dict[str, Thing] = {
            name: lambda env=env: measure.start_and_wait([sys.executable, *words], env)  # type: ignore[misc]  # noqa: B023
            for name, env in {"API hidden": hidden, "API there": here}.items()
        }
        run.compare(title, measure.in_turn(things, run.rounds(40), {"API there": Goal(1.05)}))


def _runs(runner: asyncio.Runner, folder: str) -> dict[str, Thing]:
    """The same run with different modules loaded by the application."""
    provider = TracerProvider()
    sandbox = Sandbox(audit=f"{folder}/audit.db")
    runner.run(ready.settle(sandbox, "python"))
    api_metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))

    def having(names: tuple[str, ...], tracer: trace.Tracer) -> Callable[[], None]:
        async def once() -> None:
            (await sandbox.run("pass")).raise_for_status()

        def timed() -> None:
            modules: Any = sys.modules
            for name in _LOADED:
                modules.pop(name, None)
            modules |= {name: _LOADED[name] for name in names}
            spans._TRACER = tracer
            runner.run(once())

        return timed

    return {
        "nothing loaded": having((), trace.NoOpTracer()),
        "API, no SDK": having(("opentelemetry.trace",), trace.NoOpTracer()),
        "SDK": having(tuple(_LOADED), provider.get_tracer("casemate")),
    }


if __name__ == "__main__":
    main()
