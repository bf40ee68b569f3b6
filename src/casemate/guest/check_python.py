"""Checks a Python program in a cell without running it. Standard input is a line of JSON, then the program.

A program can make parsers overflow, take very long or use all memory; the host learns that from how this process ends.
The report is one JSON document on standard output.
"""

import ast
import json
import os
import re
import sys
import warnings

TYPE_CHECKING = False  # importing typing takes as long as a check
if TYPE_CHECKING:
    from typing import Any

_MOST = 100  # issues of each kind
# KiB used for parsing: near the memory limit (see validate), and far more than deep nesting takes.
_MUCH_MEMORY = 384 << 10
_LONGEST = 300  # characters of a message
_RUFF_WITHIN = 6
_IN_SESSIONS = "F401,F403,F405,F704,F811,F821"  # ignored: other steps may define or use the names
_ROOTS = re.compile(r"\brm\s+(?:-\w+\s+|--[\w-]+\s+)*(?:/|~|\$HOME|/\*|\*)(?:\s|$)")
_SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
_RUNNERS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")}


def main() -> None:
    """Read the request, check the program, and print the report."""
    head, _, code = sys.stdin.buffer.read().partition(b"\n")
    request = json.loads(head)
    report: "dict[str, Any]" = {"issues": [], "fixes": [], "notes": []}
    tree = parse(code, request["session"], report)
    if tree is not None:
        report["issues"] += hints(tree, request["hints"])
        if request["ruff"] and "magic" not in report:
            ask_ruff(request, code, tree, report)
    report.pop("magic", None)
    sys.stdout.write(json.dumps(report) + "\n")


def parse(code: bytes, is_step: bool, report: "dict[str, Any]") -> "ast.Module | None":
    """Return the tree of a program that compiles. Otherwise return None, with the reason in ``report``."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if is_step else 0
    before = most_memory()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            source: "str | bytes" = transform_step(code, report) if is_step else code
            tree: ast.Module = compile(source, "main.py", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            compile(source, "main.py", "exec", flags, dont_inherit=True)
        except SyntaxError as error:  # also IndentationError and TabError
            place = error.lineno or 0, error.offset or 0
            report["issues"].append(issue(*place, error.msg or "invalid syntax", "error", "syntax"))
            return None
        except (RecursionError, MemoryError):  # MemoryError is raised for deep nesting too
            if most_memory() - before > _MUCH_MEMORY:
                report["issues"].append(issue(0, 0, "it takes more memory to read than it may", "error", "too-much"))
            else:
                report["issues"].append(issue(0, 0, "it is nested too deeply to be read", "error", "too-deep"))
            return None
        except (ValueError, UnicodeError, OverflowError) as error:
            report["issues"].append(issue(0, 0, str(error), "error", "syntax"))
            return None
    for warning in caught[:_MOST]:
        if issubclass(warning.category, SyntaxWarning | DeprecationWarning):
            report["issues"].append(issue(warning.lineno, 0, str(warning.message), "warning", "syntax-warning"))
    return tree


def most_memory() -> int:
    """Return this program's peak memory in KiB. getrusage(2) would include that of the process that started it."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)


def transform_step(code: bytes, report: "dict[str, Any]") -> str:
    """Return the Python that a session makes of a step, in which magics and shell commands are calls."""
    text = code.decode("utf-8")
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        report["notes"].append("IPython is not in the environment, so %magics and !commands were not understood.")
        return text
    plain = TransformerManager().transform_cell(text)
    if plain.strip() != text.strip():
        report["magic"] = True
        report["notes"].append("It has %magics or !commands, so ruff did not look at it.")
    return str(plain)


def issue(line: int, column: int, message: object, severity: str, code: str) -> "dict[str, Any]":
    """Build one finding."""
    return {"line": line, "column": column, "message": str(message)[:_LONGEST], "severity": severity, "code": code}


def hints(tree: ast.Module, table: "list[list[str]]") -> "list[dict[str, Any]]":
    """Find calls that may do harm. Names are followed through imports, but no further. ``table``: rows of
    `casemate.languages.checker.Harm`."""
    known = {word: (code, why) for calls, code, why, _ in table for word in calls.split(", ")}
    names: "dict[str, str]" = {}
    found: "dict[tuple[int, int, str], dict[str, Any]]" = {}
    node: "Any"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(
                (alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else "")
                for alias in node.names
            )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.update((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    for node in ast.walk(tree):
        for code, why in node_hints(node, names, known):
            place = node.lineno, node.col_offset + 1
            found[(*place, code)] = issue(*place, f"Hint: {why}.", "hint", code)
        if len(found) >= _MOST:
            break
    return list(found.values())[:_MOST]


def node_hints(node: ast.AST, names: "dict[str, str]", known: "dict[str, tuple[str, str]]") -> "list[tuple[str, str]]":
    """Return the code and the reason of each hint at a node."""
    words: "list[str]" = []
    if isinstance(node, ast.Call):
        name = dotted_name(node.func, names)
        hint = call_hint(node, name)
        if hint is not None:
            return [hint]
        words = [name]
    elif isinstance(node, ast.Attribute):
        words = [f".{node.attr}"]
    elif isinstance(node, ast.Name) and node.id == "__builtins__":
        words = [node.id]
    elif isinstance(node, ast.Import):
        words = [f"import {alias.name.partition('.')[0]}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        words = [f"import {str(node.module).partition('.')[0]}"]
    return [known[word] for word in words if word in known]


def dotted_name(function: ast.AST, names: "dict[str, str]") -> str:
    """Return the dotted name of a called function, or "" if it has none."""
    parts = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        return ".".join([names.get(function.id) or function.id, *reversed(parts)])
    if isinstance(function, ast.Call) and isinstance(function.func, ast.Name):
        return ".".join([function.func.id + "()", *reversed(parts)])
    return ""


def call_hint(call: ast.Call, name: str) -> "tuple[str, str] | None":
    """Return a hint about the arguments of a call, or None."""
    first = call.args[0] if call.args else None
    text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    runs = name in _SHELLS or name in _RUNNERS or name == "get_ipython().system"
    if runs and _ROOTS.search(words(first, text)):
        return "dangerous-remove", "this removes everything that it can"
    if name in _RUNNERS and any(is_shell(keyword) for keyword in call.keywords):
        return "dangerous-shell", f"{name}(shell=True) has a shell read its text"
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] or call.args[-1:]
    values = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    if name.endswith("chmod") and any(isinstance(value, int) and value & 0o002 for value in values):
        return "dangerous-permissions", "this lets everyone write there"
    return None


def words(first: "ast.AST | None", text: "str | None") -> str:
    """Return a command as text, as far as it is literal."""
    if isinstance(first, ast.List | ast.Tuple):
        return " ".join(str(part.value) for part in first.elts if isinstance(part, ast.Constant))
    return text or ""


def is_shell(keyword: ast.keyword) -> bool:
    """Whether it is ``shell=`` with anything but a literal false value."""
    return keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)


# --- ruff ------------------------------------------------------------------------------------------------------------


def ask_ruff(request: "dict[str, Any]", code: bytes, tree: ast.Module, report: "dict[str, Any]") -> None:
    """Add the findings of ruff's checks of names and formats, and the fixed text if requested."""
    import subprocess

    version = f"py{sys.version_info[0]}{sys.version_info[1]}"
    rules = ["--select", "E9,F", "--target-version", version]
    if request["session"]:
        rules += ["--ignore", _IN_SESSIONS]
    try:
        findings = json.loads(ruff(request["ruff"], [*rules, "--output-format", "json"], code))
        for finding in findings[:_MOST]:
            place = finding["location"]["row"], finding["location"]["column"]
            report["issues"].append(issue(*place, finding["message"], "warning", finding["code"]))
            if finding.get("fix") and finding["fix"]["applicability"] == "safe":
                report["fixes"].append(
                    {"message": finding["fix"]["message"], "line": place[0], "code": finding["code"]}
                )
        modules = missing_modules(tree, findings)
        report["fixes"] += [
            {"message": f"Import `{name}`", "line": line, "code": "F821"} for name, line in modules.items()
        ]
        if request["fix"] and report["fixes"]:
            fixed_code = add_imports(ruff(request["ruff"], [*rules, "--fix", "--quiet"], code), modules)
            if fixed_code != code:
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if request["session"] else 0
                compile(fixed_code, "main.py", "exec", flags, dont_inherit=True)
                report["fixed"] = fixed_code.decode("utf-8")
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, SyntaxError) as error:
        report["fixes"].clear()
        report["notes"].append(f"ruff could not look at it: {type(error).__name__}.")


def missing_modules(tree: ast.Module, findings: "list[dict[str, Any]]") -> "dict[str, int]":
    """Return the stdlib modules that the program uses without an import, with the first line that uses each."""
    attributes = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.id for node in attributes if isinstance(node, ast.Name)} & sys.stdlib_module_names
    undefined = [one for one in findings[:_MOST] if one["code"] == "F821"]
    lines = {one["message"].split("`")[1]: one["location"]["row"] for one in reversed(undefined)}
    return {name: line for name, line in lines.items() if name in used}


def add_imports(code: bytes, modules: "dict[str, int]") -> bytes:
    """Add imports below the program's docstring and its ``__future__`` imports."""
    place = 0
    for node in ast.parse(code).body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        place = node.end_lineno or 0
    lines = code.splitlines(keepends=True)
    return b"".join([*lines[:place], *(f"import {name}\n".encode() for name in sorted(modules)), *lines[place:]])


def ruff(program: str, options: "list[str]", code: bytes) -> bytes:
    """Run ruff on ``code`` and return its output."""
    import subprocess

    argv = [program, "check", "--isolated", "--no-cache", "--exit-zero", *options, "--stdin-filename", "main.py", "-"]
    env = {"RAYON_NUM_THREADS": "1", "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
    return subprocess.run(
        argv, input=code, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, timeout=_RUFF_WITHIN, check=False
    ).stdout


main()
