"""``casemate kernel``: installs kernels for JupyterLab and other front ends."""

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

app = App(name="kernel", help="Run notebooks in sessions: kernels for Jupyter front ends.")


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
    """Install a kernel for JupyterLab, nbclient and papermill.

    casemate kernel install --sys-prefix

    casemate kernel install --workspace review --set allowed_domains=example.org --set limits.memory=4GiB

    Front ends start it in the notebook's folder. jupyter kernelspec lists and removes it by its name.

    Args:
        language: python (default), or another of casemate runtimes.
        name: The kernel's name in notebooks; default casemate-python or the like.
        title: The name that people see; default "Python (casemate)" or the like.
        workspace: How cells see the notebook's folder. none (default): not at all. review: their changes are written
            once you allow it (%casemate diff, apply, discard). overlay: changes are written after each cell. direct:
            changes are written at once.
        display: inert (default): output can do nothing in the page, so HTML is cleaned, and scripts and widgets are
            left out. all: output is shown unchanged. In JupyterLab a cell's script or widget can then do all that you
            can, also outside of the sandbox.
        settings: KEY=VALUE of its configuration, as casemate config lists them; lists with commas. May be repeated.
        prefix: Install into the environment in this folder. Default: for you, in every environment.
        sys_prefix: Install into the environment that casemate runs in.
    """
    if prefix and sys_prefix:
        raise InvalidArgument("prefix", "give one of --prefix and --sys-prefix")
    language = session_runtime(language).language
    known, name = NOTEBOOKS[language], name or f"casemate-{language}"
    # -P: no module is imported from the notebook's folder, where front ends start it.
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
    variables: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        known = KEYS.get(key)
        if not equals or known is None or known.variable is None:
            raise InvalidArgument("set", f"{setting!r} is not KEY=VALUE with a key of casemate config")
        variables[known.variable] = os.path.abspath(value) if key == "policy" else value
    arguments_of_environment(variables, {})
    return variables
