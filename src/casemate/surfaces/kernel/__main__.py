"""``python -m casemate.surfaces.kernel``, which a front end starts for each notebook: a configured sandbox, its session
and the sockets for the front end."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
from typing import Any

from casemate.walls.registry import start_early

if __name__ == "__main__":
    gc.disable()  # loading makes no garbage, and collecting takes time
    start_early()  # the supervisor starts while this process loads its own modules

from casemate.api.config_files import is_configured
from casemate.api.sandbox import Sandbox
from casemate.errors import CasemateError
from casemate.languages.catalogue import LANGUAGES, runtime_for
from casemate.model.limits import Limits
from casemate.sessions.front_end import FrontEnd
from casemate.surfaces.kernel.questions import Questions

WORKSPACES = ("none", "review", "overlay", "direct")
_DAY = 86_400.0  # seconds: the default wall limit of a notebook's cell; a person interrupts it


def main() -> None:
    """Serve one front end, and end the process."""
    parser = argparse.ArgumentParser(prog="python -m casemate.surfaces.kernel")
    parser.add_argument("-f", dest="connection", required=True, help="the connection file")
    parser.add_argument("--language", default="python", choices=LANGUAGES)
    parser.add_argument("--workspace", default="none", choices=WORKSPACES, help="how the notebook's folder is seen")
    parser.add_argument("--display", default="inert", choices=("inert", "all"), help="what may act in the page")
    options = parser.parse_args()
    code = 0
    try:
        questions = Questions()
        sandbox = Sandbox(**_arguments(options.workspace), approve=questions.decide)
        sandbox.warm_up()
        from casemate.event_loop import run_in_loop

        run_in_loop(_serve(sandbox, options, questions))
    except CasemateError as error:
        print(f"casemate: {error}", file=sys.stderr)  # noqa: T201 - the front end shows it
        code = 1
    sys.stderr.flush()
    os._exit(code)  # interpreter shutdown would take longer than the start


def _arguments(workspace: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {"limits": Limits(wall=_DAY)}
    own = {} if workspace == "none" else {"workspace": os.getcwd(), "workspace_mode": workspace}
    if is_configured(os.environ):
        from casemate.api.settings import settings_of

        said = settings_of(os.environ, arguments={"workspace": own.get("workspace")})
        arguments |= said.sandbox_arguments(os.environ)
        arguments["limits"] = Limits(**{"wall": _DAY, **said.policy.limits, **said.limits})
    return arguments | own


async def _serve(sandbox: Sandbox, options: argparse.Namespace, questions: Questions) -> None:
    import asyncio

    def find_version() -> str:
        return runtime_for(options.language).find_installation().version or ""

    async with sandbox, sandbox.session(options.language) as session:
        front_end = FrontEnd(session, sandbox.validate)
        with contextlib.suppress(CasemateError):  # the first cell reports it
            await front_end.begin()
        from casemate.surfaces.kernel.kernel import Kernel  # slow to load: as an interpreter is to start
        from casemate.surfaces.kernel.wire import Wire, read_connection

        gc.freeze()  # all loaded objects live to the end
        gc.enable()
        wire = questions.wire = Wire(read_connection(options.connection))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, session.interrupt)
        try:
            await Kernel(wire, session, front_end, questions, find_version, shows_all=options.display == "all").serve()
        finally:
            wire.close()


if __name__ == "__main__":
    main()
