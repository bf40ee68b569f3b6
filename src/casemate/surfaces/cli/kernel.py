"""``casemate kernel``: kernels for JupyterLab and other front ends."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from casemate.api.keys import KEYS
from casemate.api.settings import arguments_of_environment
from casemate.errors import InvalidArgument, Unavailable
from casemate.languages.catalogue import session_runtime
from casemate.languages.notebooks import NOTEBOOKS
from casemate.surfaces.cli.failures import say
from casemate.version import how_to_install

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpecManager

_MODULE = "casemate.surfaces.kernel"

app = App(name="kernel", help="Have notebooks run in sessions: kernels for Jupyter front ends.")


@app.command
def install(
    *,
    language: str = "python",
    name: str | None = None,
    title: str | None = None,
    workspace: Literal["none", "review", "overlay", "direct"] = "none",
    display: Literal["inert", "all"] = "inert",
    settings: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    prefix: str | None = None,
    sys_prefix: bool = False,
) -> int:
    """Make a kernel known to JupyterLab, nbclient and papermill.

    casemate kernel install --sys-prefix

    casemate kernel install --workspace review --set allowed_domains=example.org --set limits.memory=4GiB

    Front ends start it in the folder of the notebook. jupyter kernelspec list and remove know it by its name.

    Args:
        language: python (unless given), or another of casemate runtimes.
        name: What notebooks call it; casemate-python and its like unless given.
        title: What people see; for example "Python (casemate)".
        workspace: How cells see the folder of the notebook. none (unless given): not at all. review: what they changed
            is written once you allow it (%casemate diff, apply, discard). overlay: it is written after each cell.
            direct: it is written at once.
        display: inert (unless given): what cells show can do nothing in the page, so HTML is cleaned, and scripts and
            widgets are left out. all: it is shown as it is. In JupyterLab a script or a widget of a cell then can do
            what you can, outside of the sandbox, too.
        settings: KEY=VALUE of its configuration, as casemate config lists them; lists with commas. May be repeated.
        prefix: Into the environment in this folder. Unless given, it is for you in every environment.
        sys_prefix: Into the environment that casemate runs in.
    """
    if prefix and sys_prefix:
        raise InvalidArgument("prefix", "give one of --prefix and --sys-prefix")
    language = session_runtime(language).language
    known, name = NOTEBOOKS[language], name or f"casemate-{language}"
    # -P: nothing of the notebook's folder, where front ends start it, is imported.
    argv = [sys.executable, "-P", "-m", _MODULE, "-f", "{connection_file}", "--language", language]
    argv += ["--workspace", workspace, "--display", display]
    spec = {
        "argv": argv,
        "display_name": title or f"{known.title} (casemate)",
        "language": known.info["name"],
        "interrupt_mode": "message",
        "env": _variables(settings),
        "metadata": {"debugger": False},
    }
    place = prefix or (sys.prefix if sys_prefix else None)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
        try:
            path = _specs().install_kernel_spec(folder, name, user=place is None, prefix=place)
        except (OSError, ValueError) as error:
            raise InvalidArgument("name", f"the kernel cannot be installed: {error}") from None
    say(f"{path} is written: choose {spec['display_name']!r} in a notebook")
    return 0


def _specs() -> KernelSpecManager:
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError:
        raise Unavailable(
            "kernels need Jupyter's own packages, which are not installed",
            remediation=how_to_install("notebook"),
        ) from None
    return KernelSpecManager(ensure_native_kernel=False)


def _variables(settings: tuple[str, ...]) -> dict[str, str]:
    """The variables that set what was said. Raises ``InvalidArgument``."""
    variables: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        known = KEYS.get(key)
        if not equals or known is None or known.variable is None:
            raise InvalidArgument("set", f"{setting!r} is no KEY=VALUE that casemate config lists")
        variables[known.variable] = os.path.abspath(value) if key == "policy" else value
    arguments_of_environment(variables)
    return variables
