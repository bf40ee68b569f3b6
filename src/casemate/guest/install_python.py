"""Installs Python packages in a separate cell, with pip or uv, from the host's index, which is the only one.

The order is JSON on standard input. The arguments are the path of uv, if any, and the folders of packages installed
before. The installer gets its own environment, empty except for notes of the packages that the program's environment
already has. So it installs what is missing or must be newer, and changes nothing else. The result is the folder layer
in the workspace.
"""

import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WORKSPACE = os.getcwd()
_HOME = f"{_WORKSPACE}/environment"
_LAYER = f"{_WORKSPACE}/layer"
_NOTE = "casemate"
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PIP_CONFIG_FILE": os.devnull}
_ENV.update((name, os.environ[name]) for name in ("HOME", "TMPDIR") if name in os.environ)


def main() -> int:
    """Carry out the order. Returns the exit code."""
    order: "dict[str, Any]" = json.load(sys.stdin)
    uv, *places = sys.argv[1:]
    if uv and not os.path.isabs(uv):  # use the image's uv, if it has one
        uv = shutil.which(uv, path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}") or ""
    site = _make_environment()
    notes = _note_what_is_there(site, places)
    command = _uv(uv, order) if uv else _pip(order)
    if not command:
        print("ERROR: this Python has no pip, and there is no uv", file=sys.stderr)
        return 1
    command += () if order["sources"] else ("--only-binary", ":all:")
    command += ("--upgrade",) if order["upgrade"] else ()
    command += ("--", *order["requirements"])
    code = subprocess.run(command, check=False, env=_ENV, stdin=subprocess.DEVNULL).returncode
    if code == 0:
        _hand_over(site, notes)
    return code


def _make_environment() -> str:
    """Make an empty virtual environment of this interpreter. Returns its site-packages."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    major, minor = sys.version_info[:2]
    site = f"{_HOME}/lib/python{major}.{minor}/site-packages"
    os.makedirs(site)
    os.mkdir(f"{_HOME}/bin")
    os.symlink(base, f"{_HOME}/bin/python")
    version = ".".join(map(str, sys.version_info[:3]))
    with open(f"{_HOME}/pyvenv.cfg", "w") as file:
        file.write(f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\nversion = {version}\n")
    return site


def _note_what_is_there(site: str, places: "list[str]") -> "list[str]":
    """Write a note for each package that programs already have. A note has the metadata that installers read, and no
    files that they could remove. Returns the notes' folders."""
    notes: "list[str]" = []
    own = [place for place in sys.path if place and not place.startswith((_WORKSPACE, os.path.dirname(sys.argv[0])))]
    for place in [*places, *own]:
        try:
            names = [name for name in os.listdir(place) if name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue  # an archive, or missing
        for name in names:
            notes += _note(site, f"{place}/{name}")
    return notes


def _note(site: str, there: str) -> "list[str]":
    head = next(filter(None, map(_head_of, (f"{there}/METADATA", f"{there}/PKG-INFO", there))), "")
    fields = dict(line.split(": ", 1) for line in head.splitlines() if line.startswith(("Name: ", "Version: ")))
    name, version = fields.get("Name", "").strip(), fields.get("Version", "").strip()
    if not name or not version or name.lower() == "pip":
        return []
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    try:
        os.mkdir(f"{site}/{folder}")
    except OSError:
        return []  # an earlier folder has it
    record = "".join(f'"{folder}/{file}",,\n' for file in ("METADATA", "INSTALLER", "RECORD"))
    for file, content in (("METADATA", head), ("INSTALLER", f"{_NOTE}\n"), ("RECORD", record)):
        with open(f"{site}/{folder}/{file}", "w", encoding="utf-8", errors="surrogateescape") as note:
            note.write(content)
    return [folder]


def _head_of(path: str) -> str:
    """Return a package's metadata fields, without its description."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().partition("\n\n")[0] + "\n"
    except OSError:
        return ""


def _pip(order: "dict[str, Any]") -> "list[str]":
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.origin:
        pip = os.path.dirname(spec.origin)
    else:
        bundled = importlib.util.find_spec("ensurepip")
        wheels = glob.glob(f"{os.path.dirname(str(bundled.origin))}/_bundled/pip-*.whl") if bundled else []
        if not wheels:
            return []
        pip = f"{max(wheels)}/pip"
    return [
        *(f"{_HOME}/bin/python", pip, "--isolated", "--no-input", "--disable-pip-version-check", "--no-cache-dir"),
        *("install", "--index-url", order["index"], "--trusted-host", order["host"], "--timeout", "600"),
        *("--retries", "0", "--no-warn-script-location", "--progress-bar", "off"),
    ]


def _uv(uv: str, order: "dict[str, Any]") -> "list[str]":
    return [
        *(uv, "--no-config", "--color", "never", "--no-progress", "--cache-dir", f"{_WORKSPACE}/cache"),
        *("pip", "install", "--python", f"{_HOME}/bin/python", "--default-index", order["index"]),
        *("--no-python-downloads", "--compile-bytecode", "--allow-insecure-host", order["host"]),
    ]


def _hand_over(site: str, notes: "list[str]") -> None:
    """Move what was installed, and nothing else, to where the host looks for it. A wheel may write any file, so what a
    package says about itself does not make it a note."""
    for note in notes:
        folder = f"{site}/{note}"
        try:
            with open(f"{folder}/INSTALLER") as file:
                is_note = file.read().strip() == _NOTE
        except OSError:
            is_note = False
        if is_note:
            shutil.rmtree(folder)
    os.unlink(f"{_HOME}/bin/python")
    for program in os.scandir(f"{_HOME}/bin"):
        _name_the_interpreter(program.path)
    os.mkdir(_LAYER)
    os.rename(site, f"{_LAYER}/site")
    for name in os.listdir(_HOME):
        if name not in ("lib", "lib64", "pyvenv.cfg"):
            os.rename(f"{_HOME}/{name}", f"{_LAYER}/{name}")


def _name_the_interpreter(program: str) -> None:
    """Make a program use the interpreter of the environment instead of the one made here."""
    ours, theirs = f"{_HOME}/bin/python".encode(), sys.executable.encode()
    if os.path.islink(program) or not os.path.isfile(program):
        return
    with open(program, "rb") as file:
        head, newline, rest = file.read().partition(b"\n")
    if head.startswith(b"#!") and ours in head:
        with open(program, "wb") as file:
            file.write(b"#!" + theirs + newline + rest)


sys.exit(main())
