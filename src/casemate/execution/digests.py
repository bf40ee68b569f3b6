"""SHA-256 of the inputs and outputs of an execution, for the record and signed statements."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from casemate.evidence.statement import sha256, to_json
from casemate.languages.places import stamp_of
from casemate.model.plan import Bind

if TYPE_CHECKING:
    from casemate.model.execution import Execution
    from casemate.model.isolation import IsolationReport
    from casemate.model.plan import Plan, Request
    from casemate.policy.policy import Policy

_NONE = ("/etc/", "/dev/")  # sources without packages


def dependencies(request: Request, plan: Plan, policy: str) -> dict[str, str]:
    """Digests of the program's inputs and environment. Blocks if there are files: those given by path are read."""
    found = {"code": sha256(request.code), "environment": _environment(plan), "policy": policy}
    if request.stdin:
        found["stdin"] = sha256(request.stdin)
    if request.files:
        from casemate.execution.gather import digest_of

        found |= {f"inputs/{name}": digest_of(content) for name, content in request.files.items()}
    return found


def outputs(execution: Execution) -> dict[str, str]:
    """Digests of the outputs and of the isolation report."""
    found = {"stdout": sha256(execution.stdout.encode()), "stderr": sha256(execution.stderr.encode())}
    if execution.full_output is not None:
        found["full_output"] = execution.full_output.sha256
    found["artifacts"] = sha256(to_json({one.name: one.sha256 for one in execution.artifacts}))
    return {**found, "wall": _of_report(execution.isolation)}


def of_policy(policy: Policy) -> str:
    """The digest of a policy's names and values."""
    return sha256(json.dumps([(one.name, one.value) for one in policy.settings], default=str).encode())


@functools.lru_cache(maxsize=16)
def _of_report(report: IsolationReport) -> str:
    return sha256(to_json(asdict(report)))


def _environment(plan: Plan) -> str:
    """The digest of lines: the interpreter's path, then the names and versions of its packages, sorted."""
    folders = _folders(tuple(entry.source for entry in plan.entries if isinstance(entry, Bind)))
    return _of_packages(plan.argv[0], tuple((folder, stamp_of(folder)) for folder in folders))


@functools.lru_cache(maxsize=64)
def _of_packages(interpreter: str, folders: tuple[tuple[str, tuple[int, int]], ...]) -> str:
    found = {name for folder, _ in folders for name in _packages_in(folder)}
    return sha256("\n".join([interpreter, *sorted(found)]).encode("utf-8", "surrogateescape"))


@functools.lru_cache(maxsize=64)
def _folders(sources: tuple[str, ...]) -> tuple[str, ...]:
    libraries = [f"{source}{lib}" for source in sources if not source.startswith(_NONE) for lib in ("", "/lib")]
    found = [f"{lib}/{name}/{kind}" for lib in libraries for name in _list(lib) if name.startswith("python3")
             for kind in ("site-packages", "dist-packages")]  # fmt: skip
    return tuple(folder for folder in dict.fromkeys((*sources, *found)) if _packages_in(folder))


def _packages_in(folder: str) -> list[str]:
    return [name for name in _list(folder) if name.endswith(".dist-info")]


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
