"""Settings at their strictest, programs that try to exceed them, and what is seen of that from outside.

Settings of one group hide nothing of each other, so that one run tries them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = {  # the caller's folder
    "kept.txt": "as it was",
    "kept/inner.txt": "as it was",
    "open/there.txt": "as it was",
    "denied.txt": "the text of a denied file",
    ".env": "the text of a hidden file",
}
SECRET = "a-value-that-nobody-may-see"


@dataclass
class Seen:
    """What was seen of a program from outside: all that came back, the folder, and requests at servers of the host."""

    text: str
    files: Mapping[str, str]
    requests: list[str]

    def is_untouched(self, *names: str) -> bool:
        """Whether these files, or all, are as they were, and none is new."""
        if names:
            return all(self.files.get(name) == PROJECT[name] for name in names)
        return dict(self.files) == PROJECT


@dataclass(frozen=True)
class Group:
    """``policy`` and ``attempts`` name the folder as PROJECT and ports of two servers as OPEN and CLOSED. ``holds``: by
    setting, whether it has held. ``loose``: a policy under which none of them does. ``secrets``: asked for with the
    program. ``indexes``: where packages come from."""

    policy: Mapping[str, Any]
    attempts: str
    holds: Mapping[str, Callable[[Seen], bool]]
    loose: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    indexes: str = ""

    def written(self, policy: Mapping[str, Any], project: Path, ports: Mapping[str, int]) -> str:
        """A policy as a file has it."""
        return filled(json.dumps(policy), project, {f'"{name}"': port for name, port in ports.items()})

    def program(self, project: Path, ports: Mapping[str, int]) -> str:
        """What tries to exceed it."""
        return filled(_TRY + self.attempts, project, ports)


def filled(text: str, project: Path, ports: Mapping[str, int]) -> str:
    """``text`` with what its names stand for."""
    for name, value in {"PROJECT": project, **ports}.items():
        text = text.replace(name, str(value))
    return text


_TRY = """
def attempt(name, do):
    try:
        print(name, do())
    except BaseException as error:
        print(name, "is refused:", type(error).__name__, error)
"""
_REQUESTS = """
import urllib.request
for host in ("127.0.0.1", "host.casemate.internal"):
    for port in (OPEN, CLOSED):
        attempt("request", lambda: urllib.request.urlopen(f"http://{host}:{port}/", timeout=20).read())
"""
_WRITES = """
import os, shutil
attempt("new", lambda: open("new.txt", "w").write("new"))
attempt("changed", lambda: open("kept.txt", "w").write("changed"))
attempt("removed", lambda: shutil.rmtree("kept"))
attempt("moved", lambda: os.rename("open/there.txt", "open/moved.txt"))
"""
_READS = """
for name in ("denied.txt", ".env"):
    attempt("read", lambda: open(name).read())
"""
_USES = """
import subprocess
attempt("within", lambda: open("open/new.txt", "w").write("new"))
attempt("memory", lambda: len(subprocess.check_output(["/bin/sh", "-c", "head -c 600M /dev/zero | tail -c 599M"])))
attempt("disk", lambda: open("/tmp/much", "wb").write(bytes(32 << 20)))
attempt("processes", lambda: len([subprocess.Popen(["/bin/sleep", "9"]) for _ in range(60)]))
"""
_PRINTS = """
print("x" * 4_000)
for _ in range(400):
    print("y" * 10_000)
"""

GROUPS = {
    "nothing": Group(
        {"network": "none", "filesystem": {"allowWrite": [], "denyRead": ["PROJECT/denied.txt"]}},
        _REQUESTS + _WRITES + _READS,
        {
            "network": lambda seen: not seen.requests,
            "filesystem.allowWrite": lambda seen: seen.is_untouched(),
            "filesystem.denyRead": lambda seen: PROJECT["denied.txt"] not in seen.text,
            "allow_read": lambda seen: PROJECT[".env"] not in seen.text,
        },
        {"network": "listed", "allow_local": ["OPEN", "CLOSED"], "allow_read": ["PROJECT/.env"]},
    ),
    "narrow": Group(
        {
            "network": "listed",
            "allowed_domains": [],
            "allow_local": ["OPEN"],
            "filesystem": {"allowWrite": ["PROJECT/open"], "denyWrite": ["PROJECT/open/there.txt"]},
            "limits": {"memory": "256MiB", "disk": "8MiB", "processes": 24},
        },
        _REQUESTS + _WRITES + _USES,
        {
            "allow_local": lambda seen: "closed" not in seen.requests,
            "filesystem.denyWrite": lambda seen: seen.is_untouched("open/there.txt"),
            "filesystem.allowWrite": lambda seen: (
                all(name.startswith("open/") for name in {*seen.files} - {*PROJECT})
                and seen.is_untouched("kept.txt", "kept/inner.txt")
            ),
            "limits.memory": lambda seen: f"memory {599 << 20}" not in seen.text,
            "limits.disk": lambda seen: f"disk {32 << 20}" not in seen.text,
            "limits.processes": lambda seen: "processes 60" not in seen.text,
        },
        {
            "network": "listed",
            "allow_local": ["OPEN", "CLOSED"],
            "limits": {"memory": "3GiB", "disk": "512MiB", "processes": 200},
        },
    ),
    "output": Group(
        {"limits": {"output": "1KiB", "full_output": "64KiB"}},
        _PRINTS,
        {
            "limits.output": lambda seen: seen.text.count("x") < 3_000,
            "limits.full_output": lambda seen: seen.text.count("y") < 512 << 10,
        },
        {"limits": {"output": "8MiB", "full_output": "64MiB"}},
    ),
    "review": Group({"workspace_mode": "review"}, _WRITES, {"workspace_mode": lambda seen: seen.is_untouched()}),
    "wall": Group(
        {"isolation": {"at_least": "own-kernel"}},
        _WRITES + "print('it', 'ran')",
        {
            "isolation.at_least": lambda seen: (
                "own-kernel" in seen.text and "it ran" not in seen.text and seen.is_untouched()
            )
        },
    ),
    "time": Group(
        {"limits": {"wall": 3}},
        "import time; time.sleep(6); print('it', 'slept')",
        {"limits.wall": lambda seen: "it slept" not in seen.text},
    ),
    "secret": Group(
        {"rules": [{"deny": "secret"}]},
        "print('it', 'ran')",
        {"rules.secret": lambda seen: "it ran" not in seen.text},
        secrets=("KEY",),
    ),
    "defaults": Group(
        {"defaults": {"files": "deny", "package": "deny"}},
        _WRITES + "attempt('package', lambda: get_ipython().run_line_magic('pip', 'install a-package'))",
        {
            "defaults.files": lambda seen: seen.is_untouched(),
            "defaults.package": lambda seen: not seen.requests,
        },
        {"rules": [{"allow": "package", "package": "a-package"}]},
        indexes="http://127.0.0.1:OPEN/simple",
    ),
}
# Keys of a policy that no program exceeds by running, each with the tests of it.
ELSEWHERE = {
    "denied_domains": "tests/egress/test_proxy.py",
    "requests": "tests/network/test_intercepted_requests.py",
    "intercept": "tests/network/test_intercepted_requests.py",
    "trust": "tests/network/test_intercepted_requests.py",
    "web": "tests/network/test_web_surfaces.py",
    "workspace": "tests/unit/api/test_options.py",
    "host": "tests/host/test_files.py",
    "previews": "tests/service/test_previews.py",
}
_STREAMS = "it hands on output as it comes; limits.full_output ends the program"
# Where a setting does not bind, and why.
NOT_KEPT = {
    **{
        ("limits.output", surface): _STREAMS
        for surface in ("casemate run", "casemate exec -", "casemate exec new", "casemate wrap, overlay",
                        "casemate wrap, direct", "kernel")
    },
    **{
        ("limits.output", surface): "an answer has a bound of its own, 18,000 characters"
        for surface in ("MCP, embedded", "MCP, in the service")
    },
    ("rules.secret", "kernel"): "a kernel is given no secrets",
}  # fmt: skip
_ONE_SHOT = ("Sandbox.run", "sync", "casemate run", "casemate exec -", "casemate wrap, overlay",
             "casemate wrap, direct", "connect, run", "HTTP", "MCP, embedded", "MCP, in the service")  # fmt: skip
# What a surface does not offer: nothing is exceeded there even where all is allowed.
NOT_OFFERED = {
    *((setting, "session.files") for group in GROUPS.values() for setting in group.holds
      if setting not in ("filesystem.allowWrite", "filesystem.denyWrite", "defaults.files", "workspace_mode")),
    *(("defaults.package", surface) for surface in _ONE_SHOT),
    ("rules.secret", "kernel"),
    *(("rules.secret", surface) for surface in ("MCP, embedded", "MCP, in the service")),  # a person is asked first
    *(("limits.full_output", surface) for surface in ("MCP, embedded", "MCP, in the service")),  # answers are short
}  # fmt: skip
