"""``casemate vault``: the user's secrets, in an encrypted file. Values come from standard input and are never shown."""

from __future__ import annotations

import os
import sys

from cyclopts import App

from casemate.api.sandbox import Sandbox
from casemate.errors import InvalidArgument
from casemate.policy.inject import Inject
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import print_json
from casemate.surfaces.cli.inputs import configured_arguments
from casemate.surfaces.cli.parameters import Name, Output
from casemate.vault.vault import default_path

_MOST = 1 << 16  # bytes to read of a value: enough to be told that it is too long

app = App(name="vault", help="Keep secrets for programs, in an encrypted file.")


@app.command(name="set")
def set_secret(
    name: Name,
    /,
    *,
    namespace: str | None = None,
    inject_host: tuple[str, ...] = (),
    header: str | None = None,
    format: str | None = None,  # noqa: A002 - its name on the command line
) -> int:
    """Keep a secret, in place of one of that name.

    casemate vault set API_TOKEN

    casemate vault set API_TOKEN --inject-host api.example.org < token.txt

    Its value is asked for without showing it; or it is what is piped in, without the newline at its end.

    Args:
        name: How programs find it in their environment: capital letters, digits and _.
        namespace: Whose it is; as configured, or default, unless given.
        inject_host: The value is put into requests to this host, outside, and programs have a placeholder. May be
            repeated.
        header: The header field of those requests that it is part of; Authorization unless given.
        format: That field's whole value, with {} for the secret; "Bearer {}" unless given.
    """
    inject = _inject(inject_host, header, format)
    sandbox, value = _open_sandbox(namespace), _value(name)
    interrupts.run_in(sandbox, lambda sandbox: sandbox.vault.set(name, value, inject=inject))
    return 0


@app.command(name="list")
def list_secrets(*, output: Output = "text", namespace: str | None = None) -> int:
    """Print the names of the secrets that are kept, one in a line; and behind a tab, where each may be put in.

    Args:
        output: text (unless given), or json: name and inject of each, which is null for one that programs get.
        namespace: Whose; as configured, or default, unless given.
    """
    found = interrupts.run_in(_open_sandbox(namespace), lambda sandbox: sandbox.vault.injects())
    if output == "json":
        from casemate.operations.documents import document

        print_json([{"name": name, "inject": document(inject)} for name, inject in found.items()])
        return 0
    for name, inject in found.items():
        sys.stdout.write(f"{name}\n" if inject is None else f"{name}\t{_where(inject)}\n")
    return 0


@app.command(name="delete")
def delete_secret(name: Name, /, *, namespace: str | None = None) -> int:
    """Forget a secret.

    Args:
        name: Its name.
        namespace: Whose it is; as configured, or default, unless given.
    """
    interrupts.run_in(_open_sandbox(namespace), lambda sandbox: sandbox.vault.delete(name))
    return 0


def _open_sandbox(namespace: str | None) -> Sandbox:
    """A sandbox in which nothing is run: it has the vault, and the record of what is changed in it."""
    said = configured_arguments("namespace", "audit", "vault")
    path = said.pop("vault", None)
    said["vault"] = path if isinstance(path, str) else default_path(os.environ)
    return Sandbox(**{**said, **({"namespace": namespace} if namespace else {})})


def _inject(hosts: tuple[str, ...], header: str | None, form: str | None) -> Inject | None:
    """Where a secret may go, as the options say. Raises ``InvalidArgument``."""
    given = {name: text for name, text in {"header": header, "format": form}.items() if text is not None}
    if hosts:
        return Inject(hosts, **given)
    if given:
        raise InvalidArgument(min(given), "says nothing without a host", remediation="Add --inject-host HOST.")
    return None


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
