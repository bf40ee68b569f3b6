"""``casemate packages``: package sets made in advance, which ``Sandbox(environment=[...])`` finds."""

from __future__ import annotations

import os
from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from casemate.api.sandbox import Sandbox
from casemate.errors import InvalidArgument
from casemate.model.approval import ApprovalRequest
from casemate.model.overview import Installed, InstalledPackage
from casemate.operations.documents import document
from casemate.packages.package_sets import Environments
from casemate.packages.store import default_folder
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import print_answer
from casemate.surfaces.cli.failures import EVERYTHING_THERE, say
from casemate.surfaces.cli.inert import visible
from casemate.surfaces.cli.inputs import configured_arguments
from casemate.surfaces.cli.parameters import Name, Output
from casemate.surfaces.cli.progress import Progress
from casemate.surfaces.cli.terminal import confirm, somebody_is_there

_OF_ADDRESSES = "%/:?#[]@!$&'()*+,;=~"  # not letters or digits (RFC 3986)

app = App(name="packages", help="Install Python packages in advance, in a cell, and keep them.")


@app.command(name="install")
def install(
    *names: Name,
    index: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    policy: str | None = None,
    yes: bool = False,
    output: Output = "text",
) -> int:
    """Install packages and their dependencies, and keep them: Sandbox(environment=[NAMES]) finds them.

    casemate packages install pandas 'requests>=2'

    The exact files are shown with their hashes first, and you are asked.

    Args:
        names: Requirements, such as 'requests>=2'.
        index: The address of an index; may be repeated. A name comes only from the first index that has it. Default:
            the index of your pip.
        policy: A policy file, whose rules about packages decide first.
        yes: Install without asking; what a rule denies stays denied.
    """
    if not names:
        raise InvalidArgument("name", "name one or more packages, such as 'requests' or 'requests>=2'")

    def approve(request: ApprovalRequest) -> bool:
        progress.end()
        _show(request)
        return yes or _confirm()

    said = configured_arguments("policy", "package_indexes", "audit", "namespace")
    given = {name: value for name, value in (("package_indexes", index), ("policy", policy)) if value}
    sandbox = Sandbox(**{**said, **given, "environment": list(names), "approve": approve})

    async def prepare(sandbox: Sandbox) -> tuple[InstalledPackage, ...]:
        progress.wait("installing")
        sandbox.packages.report = progress.bytes
        return await sandbox.packages.prepare()

    with Progress(shows=output == "text") as progress:
        packages = interrupts.run_in(sandbox, prepare)
    if not packages:
        say(EVERYTHING_THERE)
    lines = (f"{one.name}=={one.version} sha256:{one.sha256}" for one in packages)
    return print_answer(document(Installed("installed", packages)), lines, is_json=output == "json")


@app.command(name="list")
def list_environments(*, output: Output = "text") -> int:
    """Print the kept environments: their requirements and their packages."""
    known = list(Environments(default_folder(os.environ) / "environments").list_all())
    value = [{"asked": asked, "packages": [_version(one) for one in packages]} for asked, packages in known]
    lines = (
        f"{', '.join(asked)}: {' '.join(f'{one.name}=={one.version}' for one in packages)}" for asked, packages in known
    )
    return print_answer(value, lines, is_json=output == "json")


def _version(package: InstalledPackage) -> dict[str, str]:
    return {"name": package.name, "version": package.version}


def _show(request: ApprovalRequest) -> None:
    for name, file in zip(request.arguments["packages"], request.arguments["files"], strict=True):
        source = quote(file["source"], safe=_OF_ADDRESSES)  # no space or newline begins a line of its own
        say(visible(f"{name}  {source}  sha256:{file['sha256']}"))


def _confirm() -> bool:
    if somebody_is_there():
        return confirm("Install them?")
    say("no person can be asked here; --yes installs without asking")
    return False
