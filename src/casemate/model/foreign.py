"""Hints for names that do not exist: the nearest one, and what names of other sandboxes are called here. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

_ALIKE = 0.65  # of 1; below it two names have nothing to do with each other


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that is most like ``name``, or None where none is; ``memory`` is like ``limits.memory``."""
    from difflib import get_close_matches

    names = list(known)
    by_last = {one.rpartition(".")[2]: one for one in reversed(names)}
    if found := get_close_matches(name[:100], names, 1, _ALIKE):
        return found[0]
    last = get_close_matches(name[:100].rpartition(".")[2], by_last, 1, _ALIKE)
    return by_last[last[0]] if last else None


def suggest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean x?"``, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""


_MEMORY, _CPUS = 'limits=Limits(memory="512MiB")', "limits=Limits(cpus=1.0)"

# Arguments, by their lower-case name; `casemate.model.limits` adds the names of limits.
ARGUMENTS = {
    **dict.fromkeys(("max_ram_mb", "memory_mb", "memory_limit", "mem_limit"), _MEMORY),
    **dict.fromkeys(("max_cpu_cores", "cpu_limit", "cpu_count"), _CPUS),
    "max_disk_mb": 'limits=Limits(disk="256MiB")',
    "max_processes": "limits=Limits(processes=64)",
    "max_output_size": 'limits=Limits(output="1MiB")',
    **dict.fromkeys(("timeout_seconds", "execution_timeout"), "timeout"),
    **dict.fromkeys(
        ("chunks", "on_stdout", "on_stderr", "on_result", "on_error"), "stream(...), which gives events as they come"
    ),
    **dict.fromkeys(("working_dir", "work_dir"), "workspace of the Sandbox, or cwd of a session"),
    "images_dir": "output_dir of the Sandbox",
    **dict.fromkeys(("envs", "env_vars", "environment_variables"), "env"),
    "kernel_env": "env of a session",
    "sandbox_config": "policy of the Sandbox",
    "config_path": "Sandbox.from_file(path)",
    "max_concurrent": "concurrency of the Sandbox",
    "backend": "isolation of the Sandbox",
    "vault_path": "vault of the Sandbox",
    "audit_path": "audit of the Sandbox",
    **dict.fromkeys(("require_approval", "approval_handler"), "approve of the Sandbox"),
    "mcp_servers": "tools of the Sandbox",
    "api_key": "token of Sandbox.connect(url, token)",
    "template": "environment of the Sandbox",
    "context": "a session: sandbox.session()",
}

# Keys of configurations, and of variables without their prefix, by their lower-case name.
KEYS = {
    **dict.fromkeys(("max_ram_mb", "memory_mb", "memory_limit", "mem_limit"), "limits.memory"),
    **dict.fromkeys(("max_cpu_cores", "cpu_limit", "cpu_count"), "limits.cpus"),
    **dict.fromkeys(("timeout_seconds", "execution_timeout"), "timeout"),
    **dict.fromkeys(("working_dir", "work_dir"), "workspace"),
    **dict.fromkeys(("audit_path", "sqlite_path"), "audit"),
    "max_processes": "limits.processes",
    "max_disk_mb": "limits.disk",
    "max_output_size": "limits.output",
    "images_dir": "output_dir",
    **dict.fromkeys(("backend", "default_backend"), "isolation"),
    **dict.fromkeys(("max_concurrent", "max_concurrent_jobs"), "concurrency"),
    "vault_path": "vault",
    "mcp_servers": "tools",
    "sandbox_config": "policy",
}

# Options of the command line, without their hyphens.
OPTIONS = {
    "backend": "--isolation",
    "no_auto_fix": "validate as it is: it mends with --fix alone",
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


def equivalent_of(name: str, known: Iterable[str]) -> str:
    """``"; use limits=... here"`` for an argument of another sandbox, ``"; did you mean x?"`` for a misspelt one, or
    nothing. ``known``: the arguments that there are."""
    equivalent = ARGUMENTS.get(name.lower())
    return f"; use {equivalent} here" if equivalent else suggest(name, known)


def key_hint(name: str, known: Iterable[str]) -> str:
    """As :func:`equivalent_of`, for a key of a configuration."""
    equivalent = KEYS.get(name.lower())
    return f"; use {equivalent} here" if equivalent else suggest(name, known)


def option_hint(word: str) -> str:
    """``"use --isolation"`` for an option of another sandbox, or nothing."""
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
    """The type of a class that says, as its objects do, what is meant by a name that it does not have."""

    if not TYPE_CHECKING:  # a type checker has its own message

        def __getattr__(cls, name: str) -> Any:
            raise no_attribute(cls.__name__, name, dir(cls))
