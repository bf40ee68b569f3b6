"""The plan of a cell: as JSON for programs, as text for people."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from casemate.model.isolation import WALLS
from casemate.model.limits import LIMIT_BOUNDS, format_size
from casemate.model.plan import Bind, Entry, MountPoint, Plan, Symlink, SynthesizedFile
from casemate.surfaces.cli.answers import align_columns

Document = dict[str, Any]


def plan_document(plan: Plan) -> Document:
    """All that is decided before a cell starts; contents only by their size."""
    return {
        "wall": plan.wall,
        "language": plan.language,
        "program": plan.program_name,
        "program_bytes": len(plan.code),
        "argv": list(plan.argv),
        "cwd": plan.cwd,
        "env": dict(plan.env),
        "secrets": list(plan.secrets.names),
        "stdin_bytes": len(plan.stdin),
        "workspace": asdict(plan.workspace),
        "files": {name: _content(content) for name, content in plan.files.items()},
        "mounts": [
            *(mount_document(entry) for entry in plan.entries if _is_there(entry, plan.wall)),
            *(
                {"target": place, "kind": "copy" if one.copied else "read-only", "source": one.source}
                for one in plan.shown
                for place in one.places
            ),
        ],
        "limits": asdict(plan.limits),
        "deadline": plan.deadline if math.isfinite(plan.deadline) else None,
        "network": plan.network,
        "layers": list(plan.held_by),
    }


def _is_there(entry: Entry, wall: str) -> bool:
    """Whether a cell can read it. A wall without namespaces makes no files, but shows those of the machine."""
    return not isinstance(entry, MountPoint if WALLS[wall].has_namespaces else MountPoint | SynthesizedFile)


def mount_document(entry: Entry) -> Document:
    """One mount that a cell can read."""
    if isinstance(entry, Bind):
        return {"target": entry.target, "kind": "device" if entry.device else "read-only", "source": entry.source}
    if isinstance(entry, Symlink):
        return {"target": entry.target, "kind": "link", "source": entry.points_to}
    if isinstance(entry, MountPoint):
        return {"target": entry.target, "kind": "made", "source": "to be mounted over"}
    return {"target": entry.target, "kind": "made", "source": f"{len(entry.content.encode())} bytes"}


def _content(content: bytes | Path) -> str:
    return str(content) if isinstance(content, Path) else f"{len(content)} bytes"


def plan_text(document: Document) -> str:
    """A plan's document (see `plan_document`) as text, section by section."""
    wall = WALLS[document["wall"]]
    sections = {
        "program": _program(document),
        "workspace": _workspace(document),
        "differs from the native wall": wall.differences,
        "network": [(document["network"], "loopback of its own, nothing else" if wall.has_namespaces else "")],
        "limits": [(name, _limit(name, value)) for name, value in document["limits"].items()],
        "environment variables": [*document["env"].items(), *((name, "(secret)") for name in document["secrets"])],
        "readable, and nothing else": [(m["target"], _mount(m)) for m in document["mounts"]],
        "layers": [(layer, "") for layer in document["layers"]],
    }
    return "\n\n".join(f"{title}\n" + "\n".join(align_columns(rows)) for title, rows in sections.items() if rows)


def _program(document: Document) -> list[tuple[str, str]]:
    return [
        ("file", f"{document['program']} ({document['program_bytes']} bytes)"),
        ("language", document["language"]),
        ("command", " ".join(document["argv"])),
        ("folder", document["cwd"]),
        ("standard input", f"{document['stdin_bytes']} bytes"),
        ("wall", document["wall"]),
        ("ends after", "no time limit" if document["deadline"] is None else f"{document['deadline']:g} s"),
    ]


def _workspace(document: Document) -> list[tuple[str, str]]:
    workspace = document["workspace"]
    then = "kept back until it is allowed" if workspace["reviewed"] else "written back at the end"
    what = {
        "private": "empty, and gone with the cell",
        "overlay": f"{workspace['folder']}, seen through an overlay; what changed is {then}",
        "direct": f"{workspace['folder']}, written through at once",
    }
    guarded = [(f"/workspace/{name}", "not readable") for name in workspace["hidden"]]
    guarded += [(f"/workspace/{name}", "not writable") for name in workspace["kept"]]
    places = "/tmp, /dev/shm" if WALLS[document["wall"]].has_namespaces else "/tmp"
    own = (places, "empty, and gone with the cell")
    writable = [(workspace["place"] or "/workspace", what[workspace["kind"]]), *guarded, own]
    return writable + [(f"/workspace/{name}", f"copy of {source}") for name, source in document["files"].items()]


def _limit(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    form = LIMIT_BOUNDS[name].form
    if form == "size":
        return format_size(int(value))
    return f"{value:g} s" if form == "seconds" else f"{value:g}"


def _mount(mount: Document) -> str:
    if mount["kind"] == "read-only":
        return "" if mount["source"] == mount["target"] else f"{mount['source']}"
    others = {
        "device": "device",
        "copy": f"{mount['source']}, and what is written there is gone with the cell",
        "link": f"-> {mount['source']}",
        "made": f"made, {mount['source']}",
    }
    return others[mount["kind"]]
