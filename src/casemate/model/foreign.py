"""Hints for unknown names: the nearest name, or our name for one of another sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

_ALIKE = 0.65  # of 1; below this, two names are unrelated


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar name in ``known``, or None. ``memory`` is similar to ``limits.memory``."""
    from difflib import get_close_matches

    names = list(known)
    by_last = {one.rpartition(".")[2]: one for one in reversed(names)}
    if found := get_close_matches(name[:100], names, 1, _ALIKE):
        return found[0]
    last = get_close_matches(name[:100].rpartition(".")[2], by_last, 1, _ALIKE)
    return by_last[last[0]] if last else None


def suggest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean x?"``, or empty."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""


# Names in other sandboxes, and what each is here: as an argument, and as a key of the configuration.
_FOREIGN = (
    ("max_ram_mb memory_mb memory_limit mem_limit", 'limits=Limits(memory="512MiB")', "limits.memory"),
    ("max_cpu_cores cpu_limit cpu_count", "limits=Limits(cpus=1.0)", "limits.cpus"),
    ("max_disk_mb", 'limits=Limits(disk="256MiB")', "limits.disk"),
    ("max_processes", "limits=Limits(processes=64)", "limits.processes"),
    ("max_output_size", 'limits=Limits(output="1MiB")', "limits.output"),
    ("timeout_seconds execution_timeout", "timeout", "timeout"),
    ("chunks on_stdout on_stderr on_result on_error", "stream(...), which yields events as they happen", ""),
    ("working_dir work_dir", "workspace of the Sandbox, or cwd of a session", "workspace"),
    ("images_dir", "output_dir of the Sandbox", "output_dir"),
    ("envs env_vars environment_variables", "env", ""),
    ("kernel_env", "env of a session", ""),
    ("sandbox_config", "policy of the Sandbox", "policy"),
    ("config_path", "Sandbox.from_file(path)", ""),
    ("max_concurrent", "concurrency of the Sandbox", "concurrency"),
    ("max_concurrent_jobs", "", "concurrency"),
    ("backend", "isolation of the Sandbox", "isolation"),
    ("default_backend", "", "isolation"),
    ("vault_path", "vault of the Sandbox", "vault"),
    ("audit_path", "audit of the Sandbox", "audit"),
    ("sqlite_path", "", "audit"),
    ("require_approval approval_handler", "approve of the Sandbox", ""),
    ("mcp_servers", "tools of the Sandbox", "tools"),
    ("api_key", "token of Sandbox.connect(url, token)", ""),
    ("template", "environment of the Sandbox", ""),
    ("context", "a session: sandbox.session()", ""),
)
# `casemate.model.limits` adds the names of limits.
ARGUMENTS = {name: argument for names, argument, _ in _FOREIGN for name in names.split() if argument}
KEYS = {name: key for names, _, key in _FOREIGN for name in names.split() if key}

# Options of the command line, without their hyphens.
OPTIONS = {
    "backend": "--isolation",
    "no_auto_fix": "validate as it is: it fixes only with --fix",
    "auto_fix": "--fix",
    "mem_limit": "--memory",
    "network": "--allow HOST",
}

# Classes, functions and methods.
NAMES = {
    **dict.fromkeys(("SandboxFactory", "SandboxManager", "CodeExecutor", "CodeInterpreter"), "Sandbox"),
    **dict.fromkeys(("AsyncSandbox", "ExecutionContainer", "KernelGateway"), "Sandbox"),
    "SandboxConfig": "the arguments of Sandbox",
    **dict.fromkeys(("ExecutionClient", "KernelClient"), "Sandbox.session()"),
    "CodeExecutionChunk": "casemate.Output, an event of stream()",
    "CodeExecutionResult": "casemate.Execution",
    "CodeExecutionError": "execution.error, or execution.raise_for_status()",
    **dict.fromkeys(("run_code", "code_run", "execute", "execute_code"), "run(code)"),
    "submit": "start(code)",
    "create": "Sandbox(), or Sandbox.connect(url) for a running service",
    "kill": "close()",
    "commands": 'run(code, language="shell")',
    **dict.fromkeys(("create_code_context", "create_context", "create_session"), "session()"),
    **dict.fromkeys(("files", "filesystem"), "session().files, or files=... of run()"),
}


def equivalent_of(name: str, known: Iterable[str], foreign: Mapping[str, str] = ARGUMENTS) -> str:
    """``"; use limits=... here"`` for an argument of another sandbox, ``"; did you mean x?"`` for a misspelt one, or
    empty. ``known``: all our arguments."""
    equivalent = foreign.get(name.lower())
    return f"; use {equivalent} here" if equivalent else suggest(name, known)


def key_hint(name: str, known: Iterable[str]) -> str:
    """As :func:`equivalent_of`, for a key of a configuration."""
    return equivalent_of(name, known, KEYS)


def option_hint(word: str) -> str:
    """``"use --isolation"`` for an option of another sandbox, or empty."""
    equivalent = OPTIONS.get(word.partition("=")[0].lstrip("-").replace("-", "_"))
    return f"use {equivalent}" if equivalent else ""


def no_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that ``owner`` does not have."""
    equivalent = NAMES.get(name)
    hint = (
        f"; use {equivalent} here" if equivalent else suggest(name, (one for one in known if not one.startswith("_")))
    )
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


class HintingClass(type):
    """A class with hints for unknown attributes."""

    if not TYPE_CHECKING:  # a type checker has its own message

        def __getattr__(cls, name: str) -> Any:
            raise no_attribute(cls.__name__, name, dir(cls))
