"""``casemate cp``: copies files and folders between this machine, sessions and runs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from casemate.errors import InvalidArgument, NotFound, Unavailable
from casemate.files.archives import Packer, unpack
from casemate.files.beneath import hold, write_file
from casemate.files.protected import PROTECTED
from casemate.model.limits import format_size
from casemate.model.plan import WORKSPACE
from casemate.operations.lookup import match_handle
from casemate.operations.stores import MOST_BYTES
from casemate.surfaces.cli.answers import print_json
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, with_service
from casemate.surfaces.cli.failures import WHAT_THERE_IS, say
from casemate.surfaces.cli.inputs import read, read_file
from casemate.surfaces.cli.outcome import count_of
from casemate.surfaces.cli.parameters import Name
from casemate.surfaces.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from casemate.remote.client import RemoteOperations


_NOT_WHOLE = 1  # the exit code if a bound or a failure left something out
_MOST_SHOWN = 20  # lines about what was left out; --format json has more
_PIPE = "-"
_AWAY_IS = "One of the two must be SESSION:PATH or RUN:NAME; SESSION: alone is a session's workspace."


def cp(source: Name, target: Name, /, *, service: ServiceOptions = PLAIN) -> int:
    """Copy files and folders out of sessions and runs, and into sessions.

    casemate cp analysis:plot.png .

    casemate cp data analysis:

    casemate cp analysis:results/. results

    casemate cp analysis:results - | tar t

    A folder is copied into an existing folder, or else becomes what the target names; with /. at its end only its
    content is copied. Only regular files and folders are copied: no links, devices or setuid bits, and from a session
    or run no names that your tools act on by themselves (.git/hooks, .envrc). What was left out is listed.
    The exit code is 1 if a bound or a failure left more out.

    Args:
        source: A path here, SESSION:PATH or RUN:NAME, relative to the workspace. SESSION:. is all of it, and - is a tar
            archive on standard input. A path here that has a colon must begin with ./
        target: A path here, or SESSION:PATH. SESSION: alone is its workspace; - is a tar archive on standard output.
    """
    away, home = _place(source, "source"), _place(target, "target")
    if away is None and home is None:
        raise InvalidArgument("source", "neither names a session or run", remediation=_AWAY_IS)

    async def copy_places(remote: RemoteOperations) -> dict[str, Any]:
        with Progress(shows=not service.is_json) as progress:
            copying = _Copying(remote, progress)
            if away is None:
                assert home is not None
                return await copying.send_path(source, await copying.find_place(home, "target", makes=True))
            place = await copying.find_place(away, "source")
            if home is None:
                return await copying.fetch_place(place, target)
            return await copying.pass_on(place, await copying.find_place(home, "target", makes=True))

    done = with_service(copy_places, service)
    return _report_copy({"source": source, "target": target, **done}, service, quiet=target == _PIPE)


@dataclass(frozen=True)
class _RemotePath:
    of: dict[str, str]  # the session or run, as operations take it
    path: str
    kind: str | None  # of the file there, if any
    has_end: bool = False  # a slash: a folder is meant
    is_content: bool = False  # only the content of the folder

    @property
    def name(self) -> str:
        return "" if self.is_content else PurePosixPath(self.path).name

    def within(self, name: str, kind: str) -> str:
        """The path of a file or folder that is copied here. Raises ``InvalidArgument``."""
        if self.kind == "folder" or (self.has_end and kind == "file"):
            return f"{self.path}/{name}".strip("/")
        if self.kind not in (None, kind):
            raise InvalidArgument("target", f"{self.path!r} exists and is a {self.kind}")
        return self.path


class _Copying:
    def __init__(self, remote: RemoteOperations, progress: Progress) -> None:
        self._remote = remote
        self._progress = progress

    async def find_place(self, place: tuple[str, str], argument: str, *, makes: bool = False) -> _RemotePath:
        """The path that HANDLE:PATH names; with ``makes`` it need not exist. Raises ``InvalidArgument``."""
        handle, path = place
        of = await self._handle(handle, argument)
        if makes and "run" in of:
            raise InvalidArgument(argument, f"{handle!r} is a run, which is over; copy into a session")
        is_content = path in (".", "./") or path.endswith("/.")
        plain = "/".join(part for part in path.split("/") if part not in ("", "."))
        try:
            kind = (await self._remote("files.info", {"path": plain, **of}))["kind"]
        except InvalidArgument as error:
            if not makes:
                error.argument = argument
                raise
            kind = None
        if kind not in (None, "file", "folder"):
            raise InvalidArgument(argument, f"{path!r} is a {kind}; only files and folders are copied")
        return _RemotePath(of, plain, kind, path.endswith("/"), is_content or not plain)

    async def _handle(self, handle: str, argument: str) -> dict[str, str]:
        sessions = await self._remote("sessions.list")
        if any(handle in (one["session"], one["name"]) for one in sessions):
            return {"session": handle}
        known = {one["session"]: "session" for one in sessions}
        known |= {one["run"]: "run" for one in await self._remote("runs.list")}
        found = match_handle(handle, known, argument, "sessions and runs")
        if found is None:
            raise NotFound(
                argument, f"there is no session or run {handle[:100]!r}, or it has ended", remediation=WHAT_THERE_IS
            )
        return {known[found]: found}

    async def fetch_place(self, place: _RemotePath, target: str) -> dict[str, Any]:
        if target == _PIPE:
            return await self._to_pipe(place)
        path = _within(target, place)
        if place.kind == "file":
            return await self._fetch_file(place, path)
        made = await self._remote("archives.pack", {"path": place.path, **place.of})
        with tempfile.TemporaryFile(prefix="casemate-") as archive:
            await self._archive(made, archive)
            written = _unpack_archive(archive, path, self._progress)
        return _sum(made, written)

    async def _fetch_file(self, place: _RemotePath, path: Path) -> dict[str, Any]:
        kind, handle = ("files", place.of["session"]) if "session" in place.of else ("artifacts", place.of["run"])
        data = await self._remote.download(kind, handle, *place.path.split("/"))
        write_target(path, data)
        return _one(data)

    async def _to_pipe(self, place: _RemotePath) -> dict[str, Any]:
        if sys.stdout.isatty():
            raise InvalidArgument("target", "an archive cannot go to a terminal; send it to a file or to tar")
        top = {"top": place.name} if place.kind == "folder" and place.name else {}
        made = await self._remote("archives.pack", {"path": place.path, **top, **place.of})
        with tempfile.TemporaryFile(prefix="casemate-") as archive:
            await self._archive(made, archive)
            shutil.copyfileobj(archive, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()
        return _sum(made)

    async def _archive(self, made: dict[str, Any], archive: BinaryIO) -> None:
        try:
            await self._remote.fetch(("archives", made["handle"]), archive, self._report(made["bytes"]))
        finally:
            await self._remote("archives.drop", {"handle": made["handle"]})
        archive.seek(0)

    async def send_path(self, source: str, place: _RemotePath) -> dict[str, Any]:
        if source == _PIPE:
            if place.kind != "folder":
                raise InvalidArgument("target", f"{place.path!r} is not a folder of the session")
            if sys.stdin.isatty():
                raise InvalidArgument("source", "an archive must come from a file or from tar, not from a terminal")
            data = _check_size(read(0, MOST_BYTES + 1))
            return await self._unpack_upload(await self._upload(data), place, place.path)
        path, is_folder = _resolve_source(source)
        if not is_folder:
            data = _check_size(read_file("source", str(path), MOST_BYTES + 1))
            handle = await self._upload(data)
            try:
                written = {"path": place.within(path.name, "file"), "handle": handle}
                await self._remote("files.write", {**place.of, **written})
            finally:
                await self._remote("archives.drop", {"handle": handle})
            return _one(data)
        is_content = source in (".", "./", "..", "../") or source.endswith("/.")
        into = place.path if is_content else place.within(path.name, "folder")
        if is_content and place.kind == "file":
            raise InvalidArgument("target", f"{place.path!r} exists and is a file")
        with tempfile.TemporaryFile(prefix="casemate-") as archive:
            packed = _pack_folder(path, archive, self._progress)
            archive.seek(0)
            handle = await self._upload(archive.read())
        return _sum(packed, await self._unpack_upload(handle, place, into))

    async def _upload(self, data: bytes) -> str:
        return await self._remote.upload(data, self._report(len(data)))

    def _report(self, total: int) -> Callable[[int], None]:
        return lambda reached: self._progress.bytes(min(reached, total), total)

    async def _unpack_upload(self, handle: str, place: _RemotePath, path: str) -> dict[str, Any]:
        try:
            unpacked = await self._remote("archives.unpack", {**place.of, "handle": handle, "path": path})
        finally:
            await self._remote("archives.drop", {"handle": handle})
        return _sum(unpacked)

    async def pass_on(self, place: _RemotePath, home: _RemotePath) -> dict[str, Any]:
        """Copy from a session or run to a session, within the service."""
        kind = place.kind or "file"
        path = home.path if place.is_content else home.within(place.name, kind)
        if kind == "file" and PurePosixPath(path).name != place.name:
            raise InvalidArgument("target", f"a file keeps its name between sessions: {place.name!r}")
        made = await self._remote("archives.pack", {"path": place.path, **place.of})
        folder = path.rpartition("/")[0] if kind == "file" else path
        return _sum(made, await self._unpack_upload(made["handle"], home, folder))


def _place(text: str, argument: str) -> tuple[str, str] | None:
    """The handle and path of a place in the service; None for a path here."""
    handle, colon, path = text.partition(":")
    if not colon or not handle or "/" in handle or handle.startswith("."):
        return None
    if not path and argument == "source":
        raise InvalidArgument(
            "source", f"{text!r} has no path after its colon", remediation=f"{text}. is the whole workspace."
        )
    return handle, _beneath(path, argument)


def _beneath(path: str, argument: str) -> str:
    """The path relative to the workspace. Raises ``InvalidArgument`` for a path elsewhere in a cell."""
    if f"{path}/".startswith(f"{WORKSPACE}/"):
        return path.removeprefix(WORKSPACE).lstrip("/")
    if path.startswith("/"):
        raise InvalidArgument(
            argument,
            f"{path!r} is not in the workspace, and only files there are copied",
            remediation=f"Paths of a session or run are relative to its workspace, which programs see as {WORKSPACE}.",
        )
    return path


def _resolve_source(source: str) -> tuple[Path, bool]:
    try:
        is_folder = stat.S_ISDIR(os.stat(source).st_mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgument("source", f"cannot read {source!r}: {reason}") from None
    return Path(os.path.abspath(source)), is_folder


def _within(target: str, place: _RemotePath) -> Path:
    """Where a copy to ``target`` goes on this machine. Raises ``InvalidArgument``."""
    path = Path(target)
    if target.endswith("/") and place.kind == "file" and not path.is_dir():
        raise InvalidArgument("target", f"there is no folder {target!r}")
    if path.is_dir() and place.name:
        path = path / place.name
    if place.kind == "folder" and path.exists() and not path.is_dir():
        raise InvalidArgument("target", f"{str(path)!r} exists and is not a folder")
    if place.kind == "file" and path.is_dir():
        raise InvalidArgument("target", f"{str(path)!r} exists and is a folder")
    return path


def _check_size(data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise InvalidArgument("source", f"has more than {format_size(MOST_BYTES)}")
    return data


def _pack_folder(folder: Path, archive: BinaryIO, progress: Progress) -> dict[str, Any]:
    packer = Packer(archive, tell=progress.files)
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgument("source", f"cannot read {str(folder)!r}: {error.strerror}") from None
    with hold(root):
        packer.tree(root)
    return _document(packer.end())


def _unpack_archive(archive: BinaryIO, folder: Path, progress: Progress) -> dict[str, Any]:
    masked = os.umask(0o077)
    os.umask(masked)
    try:
        folder.mkdir(exist_ok=True)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgument("target", f"cannot write {str(folder)!r}: {error.strerror}") from None
    refuses = partial(_refusal_of, folder.name)
    with hold(root):
        try:
            return _document(unpack(archive, root, masked=masked | 0o022, refuses=refuses, tell=progress.files))
        except OSError as error:
            raise Unavailable(f"{str(folder)!r} cannot hold all of it: {error.strerror}") from None


def _refusal_of(top: str, path: tuple[bytes, ...], is_folder: bool) -> str | None:
    """Why a path in a folder called ``top`` is not copied with it; None if it is."""
    why = PROTECTED.reason((*filter(None, (top,)), *map(os.fsdecode, path)), folder=is_folder)
    return f"{why}; copy it by itself" if why else None


def write_target(target: Path, data: bytes) -> None:
    """Write ``data`` to ``target``. A link there is replaced, not followed."""
    try:
        with hold(os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            write_file(folder, target.name, (data,))
    except OSError as error:
        raise InvalidArgument("target", f"cannot write {str(target)!r}: {error.strerror}") from None


def _document(carried: Any) -> dict[str, Any]:
    left_out = [{"name": one.name, "reason": one.reason} for one in carried.left_out]
    names = ("files", "folders", "bytes", "is_whole")
    return {**{name: getattr(carried, name) for name in names}, "left_out": left_out}


def _one(data: bytes) -> dict[str, Any]:
    return {"files": 1, "folders": 0, "bytes": len(data), "left_out": [], "is_whole": True}


def _sum(*steps: dict[str, Any]) -> dict[str, Any]:
    known = {name: steps[-1][name] for name in ("files", "folders", "bytes")}
    left_out = [one for step in steps for one in step["left_out"]]
    return {**known, "left_out": left_out, "is_whole": all(step["is_whole"] for step in steps)}


def _report_copy(done: dict[str, Any], service: ServiceOptions, *, quiet: bool) -> int:
    if service.is_json and not quiet:
        print_json(done)
    else:
        from casemate.surfaces.cli.inert import visible

        for one in done["left_out"][:_MOST_SHOWN]:
            say(visible(f"left out: {one['name']}: {one['reason']}"))
        if (more := len(done["left_out"]) - _MOST_SHOWN) > 0:
            say(f"left out: {more} more; --format json names them")
        if sys.stderr.isatty():
            counted = f"{count_of(done['files'], 'file')} and {count_of(done['folders'], 'folder')}"
            say(f"copied {counted}, {format_size(done['bytes'])}")
    return 0 if done["is_whole"] else _NOT_WHOLE
