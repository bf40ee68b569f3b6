"""``casemate vault``: the user's secrets, in an encrypted file. Values are read from standard input and never shown."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from casemate.api.sandbox import Sandbox
from casemate.errors import InvalidArgument
from casemate.policy.inject import Inject
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import print_json
from casemate.surfaces.cli.commands import asks
from casemate.surfaces.cli.inputs import configured_arguments
from casemate.surfaces.cli.parameters import Output
from casemate.vault.vault import default_path

_MOST = 1 << 16  # bytes to read of a value: enough to see that it is too long

Namespace = Annotated[str | None, Parameter(help="Its namespace; as configured, or default.")]

app = App(name="vault", help="Keep secrets for programs, in an encrypted file.")


@app.command(name="set")
@asks("vault.set", "name --inject-host=hosts --header? --format?")
def set_secret(given: dict[str, Any], *, namespace: Namespace = None) -> int:
    """Keep a secret; an existing one of that name is replaced.

    casemate vault set API_TOKEN

    casemate vault set API_TOKEN --inject-host api.example.org < token.txt

    The value is asked for without showing it, or read from a pipe, without the newline at its end.
    """
    name, hosts = given.pop("name"), given.pop("hosts")
    if given and not hosts:
        raise InvalidArgument(min(given), "has no effect without a host", remediation="Add --inject-host HOST.")
    inject = Inject(hosts, **given) if hosts else None
    sandbox, value = _open_sandbox(namespace), _value(name)
    interrupts.run_in(sandbox, lambda sandbox: sandbox.vault.set(name, value, inject=inject))
    return 0


@app.command(name="list")
def list_secrets(*, output: Output = "text", namespace: Namespace = None) -> int:
    """Print the names of the secrets, one per line, with a tab and its injection if it has one."""
    found = interrupts.run_in(_open_sandbox(namespace), lambda sandbox: sandbox.vault.injects())
    if output == "json":
        from casemate.operations.documents import document

        print_json([{"name": name, "inject": document(inject)} for name, inject in found.items()])
        return 0
    for name, inject in found.items():
        sys.stdout.write(f"{name}\n" if inject is None else f"{name}\t{_where(inject)}\n")
    return 0


@app.command(name="delete")
@asks("vault.delete", "name")
def delete_secret(given: dict[str, Any], *, namespace: Namespace = None) -> int:
    """Forget a secret."""
    interrupts.run_in(_open_sandbox(namespace), lambda sandbox: sandbox.vault.delete(**given))
    return 0


def _open_sandbox(namespace: str | None) -> Sandbox:
    """A sandbox for the vault and the record of its changes; nothing runs in it."""
    said = configured_arguments("namespace", "audit", "vault")
    path = said.pop("vault", None)
    said["vault"] = path if isinstance(path, str) else default_path(os.environ)
    return Sandbox(**{**said, **({"namespace": namespace} if namespace else {})})


def _where(inject: Inject) -> str:
    return f"{' '.join(inject.hosts)}  {inject.header}: {inject.format}"


def _value(name: str) -> str:
    if sys.stdin.isatty():
        import getpass

        try:
            return getpass.getpass(f"{name}: ")
        except EOFError:
            raise InvalidArgument("value", f"of {name} was not given") from None
    data = sys.stdin.buffer.read(_MOST).removesuffix(b"\n").removesuffix(b"\r")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("value", f"of {name} is not UTF-8 text") from None
