"""Finds what a cell must not see or change in a folder, before the cell is made."""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

from casemate.errors import InvalidArgument, Unavailable
from casemate.files.beneath import hold, mount_of
from casemate.files.protected import PROTECTED, Protection, holds_protected
from casemate.policy.globs import compile_globs, is_pattern, literal_folder
from casemate.policy.policy import Writable
from casemate.workspace.listing import FolderListing, Listings
from casemate.workspace.rules import FolderRules, path_of

HIDDEN = ("/**/.env",)  # in every folder given to a cell, unless the caller names it as visible
_ANYWHERE = "/**/"
_HEAD = "HEAD"
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")  # at the top of a Python environment
_MOST_LOOKED_AT = 2_000_000  # files and folders, which takes some seconds
_MOST_FOUND = 400  # each takes a mount and, while watched, an open file
_MOST_BYTES = 64 << 10  # of names, which travel in one message
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_MOST_SHOWN = 3  # names in an error
_LONGEST_SHOWN = 100  # characters of each


@dataclass(frozen=True, slots=True)
class GuardedPaths:
    """Existing paths beneath a folder. The empty path is the folder itself."""

    hidden: tuple[str, ...] = ()  # invisible to the cell
    kept: tuple[str, ...] = ()  # read-only, except for ``writable`` paths in them
    writable: tuple[str, ...] = ()


class Guard:
    """What is hidden, read-only and writable in folders. Every surface and every wall takes it from here.

    ``hidden``: absolute paths and patterns. ``unwritable``: the same, each with the place in a policy that names it.
    ``writable``: the only folders that may be written to, and the place that names them; None for all. ``denied``: why
    nothing is applied; empty if changes are applied. ``protection``: names that are also kept if a folder is written
    through. ``usual``: more patterns to hide, except at the paths in ``seen``. ``output``: a top-level folder that is
    handed out.
    """

    def __init__(
        self,
        hidden: tuple[str, ...] = (),
        unwritable: tuple[tuple[str, str], ...] = (),
        protection: Protection | None = None,
        usual: tuple[str, ...] = (),
        seen: tuple[str, ...] = (),
        *,
        writable: Writable | None = None, denied: str = "", output: str = "",
    ) -> None:  # fmt: skip
        self._kept = [(path, _resolve_pattern(path), where) for path, where in unwritable]
        self._named = (*map(_resolve_pattern, hidden), *(path for _, path, _ in self._kept))
        names = [pattern.removeprefix(_ANYWHERE) for pattern in usual if pattern.startswith(_ANYWHERE)]
        self._listings = None
        is_plain = not any("/" in name or is_pattern(name) for name in names)
        if is_plain and len(names) == len(usual) and not (hidden or unwritable or protection):
            self._listings = Listings(frozenset((*names, _HEAD)))
        self._hidden = compile_globs(map(_resolve_pattern, hidden))
        self._usual = compile_globs(map(_resolve_pattern, usual))
        self._seen = {_resolve_pattern(path) for path in seen}
        self._unwritable = [(compile_globs((path, f"{path}/**")), where) for _, path, where in self._kept]
        self._writable = writable and tuple(map(os.path.realpath, writable.folders))
        self._where_writable = writable.where if writable else ""
        self._protection, self._denied, self._output = protection, denied, output
        self._keeps = bool(unwritable or protection)

    def find(self, folder: Path) -> GuardedPaths:
        """Find the guarded paths in ``folder``, an absolute path without links. Links are not followed, but if a hidden
        or kept link leads to something in the folder, that is hidden or kept, too.

        Raises ``InvalidArgument`` if there is too much to examine or to guard.
        """
        names = _Names(folder, "workspace")
        rules = FolderRules(self._protection, kept_by_policy=partial(self._why_denied, str(folder)))
        links = self._look(folder, names, rules)
        if self._keeps and (leads := self._leads(folder, links)):
            self._look(folder, names, replace(rules, leads=leads))
        found = names.guarded_paths()
        if self._writable is None or not self._why_unlisted(str(folder), ""):
            return found
        inside = [path for one in self._writable if (path := _relative(one, folder)) and os.path.lexists(one)]
        kept = "", *(path for path in found.kept if path)
        return replace(found, kept=kept, writable=(*inside, *filter(None, [self._output])))

    def find_hidden(self, folder: Path, argument: str) -> tuple[str, ...]:
        """The hidden paths in ``folder``, which is only read. Raises like :meth:`find`, for ``argument``."""
        names = _Names(folder, argument)
        self._look(folder, names)
        return names.guarded_paths().hidden

    def rules(self, folder: Path, hidden: tuple[str, ...] = (), *, names: bool = True) -> FolderRules:
        """What stays as it is in ``folder`` now, and why. ``hidden``: the paths found there. ``names``: whether
        protected names count, which they do not in a cell's own copy. Raises like :meth:`find`."""
        why_denied, why_unlisted = (partial(why, str(folder)) for why in (self._why_denied, self._why_unlisted))
        leads = self._leads(folder, self._look(folder))
        ways = [*leads, *(f"{_relative(literal_folder(path), folder)}/" for _, path, _ in self._kept)]
        output = self._output if why_unlisted(self._output) or why_denied(self._output) else ""
        anchors = frozenset(place for way in ways for place in _above(way))
        protection = PROTECTED if names else None
        return FolderRules(protection, frozenset(hidden), leads, anchors, why_denied, why_unlisted, output)

    def _look(self, folder: Path, names: _Names | None = None, rules: FolderRules | None = None) -> dict[str, str]:
        """Note in ``names`` what is hidden, and what ``rules`` keep. Returns the links in ``folder``, each with its
        path as the protected names see it: any folder with a HEAD counts as a repository."""
        links, repositories = [], set()
        for path, is_folder, is_link in _walk(folder, names or _Names(folder, "workspace"), self._listings):
            if is_link:
                links.append(path)
            if os.path.basename(path) == _HEAD:
                repositories.add(os.path.dirname(path))
            if names and self._is_hidden(f"{folder}/{path}".rstrip("/")):
                names.hide({path} | _behind(folder, path) if is_link else {path})
            elif names and rules and self._protection and "/" in path and os.path.basename(path) in _ENVIRONMENT:
                names.keep(os.path.dirname(path))
            elif names and rules and self._keeps and rules.reason(path_of(path), folder=is_folder):
                names.keep(path)
        outer = {link: next((one for one in ("", *_above(link)) if one in repositories), None) for link in links}
        return {one: one if top is None else f".git/{one[len(top) :].lstrip('/')}" for one, top in outer.items()}

    def _leads(self, folder: Path, links: Mapping[str, str]) -> dict[str, frozenset[str]]:
        """The places in ``folder`` that kept ``links`` lead to or through, each with the names of those links."""
        leads = defaultdict[str, frozenset[str]](frozenset)
        ways = [(f"{folder}/{link}", name) for one in links.items() for link in one[:1] for name in {*one}]
        ways = [one for one in ways if _is_protected(one[1]) or self._why_denied(str(folder), one[1])]
        ways += [(path, os.path.relpath(real, folder)) for path, real, _ in self._kept if not is_pattern(path)]
        for start, name in ways:
            for place in filter(None, (_relative(place, folder) for place in _way(start))):
                leads[place] |= {name}
        return dict(leads)

    def hides(self, folder: Path, path: str) -> bool:
        """Whether ``path`` beneath ``folder`` (see :meth:`find`) is hidden by name, or lies in a hidden folder."""
        return any(self._is_hidden(f"{folder}/{place}") for place in (*_above(path), path))

    def find_seen(self, system: Iterable[str], own: Iterable[str]) -> str:
        """A path that is to be hidden although every cell sees it; empty if none. ``system``: paths where patterns for
        the whole machine do not apply. ``own``: paths that are searched. Raises like :meth:`find`."""
        starts = [f"{literal_folder(path) if is_pattern(path) else path}/" for path in self._named]
        for one in (*system, *own):
            is_covered = any(map(self._hidden.match, ("/", *_above(one), one)))
            if is_covered or any(start.startswith(f"{one}/") for start in starts):
                return one
        walked = own if any(map(is_pattern, self._named)) else ()
        return next((f"{one}/{found[0]}" for one in walked if (found := self.find_hidden(Path(one), "workspace"))), "")

    def why_closed(self, path: str, workspace: Path | None, *, writes: bool) -> str:
        """Why the host must not read a file (or, if ``writes``, write it) for a program; empty if it may. ``path``:
        absolute. ``workspace``: the folder that programs work in. Raises like :meth:`find`."""
        place = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        folder = workspace.resolve() if workspace else Path("/")
        inside = _relative(place, folder) if workspace else ""
        found = {*self.find_hidden(folder, "workspace")} if inside else set()
        if _is_beneath(f"{inside}/", found) or any(map(self._is_hidden, (*_above(place), place))):
            return "the policy hides it"
        if writes and inside and (why := self.rules(folder).reason(path_of(inside), folder=False)):
            return why
        return (self._why_unlisted("", place[1:]) or self._why_denied("", place[1:])) if writes else ""

    def find_missing(self, folder: Path) -> Iterator[str]:
        """Paths in ``folder`` to hide or keep that do not exist, so that nothing can be mounted over them."""
        for path in self._named:
            if not is_pattern(path) and Path(path).is_relative_to(folder) and not os.path.lexists(path):
                yield path

    def _is_hidden(self, path: str) -> bool:
        return bool(self._hidden.match(path)) or (path not in self._seen and bool(self._usual.match(path)))

    def _why_denied(self, folder: str, path: str) -> str:
        place = os.path.normpath(f"{folder}/{path}")
        where = next((where for pattern, where in self._unwritable if pattern.match(place)), "")
        return f"the policy keeps it as it is ({where}: denyWrite)" if where else ""

    def _why_unlisted(self, folder: str, path: str) -> str:
        place = Path(os.path.normpath(f"{folder}/{path}"))
        if self._denied or self._writable is None or any(place.is_relative_to(one) for one in self._writable):
            return self._denied
        return f"the policy lets nothing be written there ({self._where_writable}: allowWrite)"


class _Names:
    """What was found so far in ``folder``, which ``argument`` named. Holds little more than can be mounted over,
    however much there is."""

    def __init__(self, folder: Path, argument: str) -> None:
        self.argument = argument
        self.hidden: set[str] = set()
        self._kept: set[str] = set()
        self._folder = folder

    def hide(self, paths: set[str]) -> None:
        """Add hidden paths. Raises ``InvalidArgument`` if there are too many."""
        self.hidden |= paths
        self._check()

    def keep(self, path: str) -> None:
        """Add a kept path, unless a folder above it is kept. Raises like :meth:`hide`."""
        if not _is_beneath(path, self._kept):
            self._kept.add(path)
            self._check()

    def guarded_paths(self) -> GuardedPaths:
        """Raises ``InvalidArgument`` if they do not fit."""
        found = GuardedPaths(_outermost(self.hidden), _outermost(self._kept))
        _check_fits((*found.hidden, *found.kept), self._folder, self.argument)
        return found

    def _check(self) -> None:
        """Check the bound, but only every 400 names: removing nested paths takes a pass over all of them."""
        if len(self.hidden) + len(self._kept) > 2 * _MOST_FOUND:
            self.hidden, self._kept = set(_outermost(self.hidden)), set(_outermost(self._kept))
            if len(self.hidden) + len(self._kept) > _MOST_FOUND:
                names = (*sorted(self.hidden), *sorted(self._kept))
                _check_fits(names, self._folder, self.argument, is_all=False)


_MOST_LINKS = 40  # links in a path, as the kernel allows (path_resolution(7))


def _way(path: str) -> list[str]:
    """Each link that an absolute path leads through, then its end, which need not exist."""
    passed: list[str] = []
    done, parts = "/", path.split("/")
    while parts and len(passed) < _MOST_LINKS:
        place = os.path.normpath(f"{done}/{parts.pop(0)}")
        try:
            target = os.readlink(place)
        except OSError:  # no link, or missing
            done = place
            continue
        passed.append(place)
        done, parts = "/" if target.startswith("/") else done, [*target.split("/"), *parts]
    return [*passed, done]


def _relative(path: str, folder: Path) -> str:
    """``path`` relative to ``folder``; empty if it is not in it."""
    return path[len(str(folder)) + 1 :] if path.startswith(f"{folder}/") else ""


def _above(path: str) -> list[str]:
    """The folders on the way to a path."""
    parts = path.split("/")
    return [place for depth in range(1, len(parts)) if (place := "/".join(parts[:depth]))]


@lru_cache(maxsize=1 << 14)
def _is_protected(path: str) -> bool:
    names = tuple(path.split("/"))
    return PROTECTED.reason(names) is not None or holds_protected(names)


def seen_through_layers(folder: Path, found: GuardedPaths) -> GuardedPaths:
    """The paths among ``found`` on the mount of ``folder`` itself: an overlay shows no mounts beneath it."""
    if found == GuardedPaths():
        return found
    mounts = _mount(str(folder)), None
    kept = [
        tuple(path for path in paths if not path or _mount(os.path.dirname(f"{folder}/{path}")) in mounts)
        for paths in (found.hidden, found.kept, found.writable)
    ]
    return GuardedPaths(*kept)


def _mount(path: str) -> int | None:
    """The number of the mount that holds a folder; None if the folder cannot be opened any more."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    with hold(fd):
        return mount_of(fd)


class Watched:
    """Hidden files and folders of a live cell. A mount hides a file, not a name: if another program replaces the file,
    as editors do when they save, the new file is not hidden."""

    def __init__(self) -> None:
        self._open_files: dict[Path, int] = {}

    def add(self, folder: Path, hidden: tuple[str, ...]) -> None:
        """Watch the ``hidden`` paths beneath ``folder``. An open file keeps its inode number from being reused. Raises
        ``Unavailable``, and then watches nothing, if the process or system has no room for more open files."""
        for path in hidden:
            place = folder / path
            try:
                self._open_files[place] = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    continue  # it is gone, so making the cell fails
                self.close()
                raise Unavailable(
                    f"{len(hidden)} files are hidden in {str(folder)!r}, and each is held open while a program writes "
                    f"through, to notice that it is replaced: {error.strerror}",
                    remediation="Let the process have more open files (ulimit -n), run fewer programs at once, or use "
                    'workspace_mode="overlay".',
                ) from None

    def find_replaced(self) -> str:
        """The first path at which another file lies now; empty if none."""
        for place, fd in self._open_files.items():
            try:
                now, then = os.lstat(place), os.fstat(fd)
            except OSError:
                continue  # it is gone, so there is nothing to read
            if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino):
                return str(place)
        return ""

    def close(self) -> None:
        while self._open_files:
            os.close(self._open_files.popitem()[1])


def _resolve_pattern(pattern: str) -> str:
    """The pattern with links resolved in its literal leading folders."""
    start = literal_folder(pattern)
    return os.path.join(os.path.realpath(start), pattern[len(start) :].lstrip("/"))


def _walk(folder: Path, names: _Names, listings: Listings | None) -> Iterator[tuple[str, bool, bool]]:
    """Each path beneath ``folder``, itself first, outer before inner, without the content of hidden folders; whether it
    is a folder; and whether it is a link. With ``listings``, only paths with the names that those look for."""
    top, looked_at = str(folder), 0
    is_folder = stat.S_ISDIR(os.lstat(folder).st_mode)
    yield "", is_folder, False
    waiting = [top] if is_folder else []
    list_folder = _list_all if listings is None else listings.walk().list_folder
    while waiting:
        path = waiting.pop()
        inside = path[len(top) + 1 :]
        if inside in names.hidden:
            continue
        try:
            listed = list_folder(path, _MOST_LOOKED_AT - looked_at)
            if (listings is None or listed.named) and not os.access(path, os.X_OK):  # nothing in it can be opened
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        except OSError as error:
            names.hide(_hide_unlisted(path, inside, error))
            continue
        looked_at += listed.entries
        for name, is_folder, is_link in listed.named:
            yield f"{inside}/{name}" if inside else name, is_folder, is_link
            if is_folder:
                waiting.append(f"{path}/{name}")
        waiting.extend(listed.folders)
        if looked_at > _MOST_LOOKED_AT:
            raise InvalidArgument(
                names.argument,
                f"more than {_MOST_LOOKED_AT} files in {str(folder)!r} are too many to search for paths to hide",
                remediation="Give a smaller folder.",
            )


def _list_all(path: str, most: int) -> FolderListing:
    """The content of a folder; if it has more than ``most`` entries, one more than ``most``."""
    with os.scandir(path) as found:
        entries = islice(found, most + 1)
        named = tuple((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries)
    return FolderListing((), (), named, len(named))


def _check_fits(names: tuple[str, ...], folder: Path, argument: str, *, is_all: bool = True) -> None:
    """Raise ``InvalidArgument`` if the names are too many to mount over. ``is_all``: False if more may exist."""
    size = sum(len(os.fsencode(name)) + 8 for name in names)
    if len(names) <= _MOST_FOUND and size <= _MOST_BYTES:
        return
    most = f"{_MOST_FOUND} is the limit, because each takes a mount and an open file"
    if len(names) <= _MOST_FOUND:
        most = f"they take {size} bytes, and a message to the wall has room for {_MOST_BYTES}"
    number = f"{len(names)} names" if is_all else f"at least {len(names)} names"
    some = ", ".join(ascii(name[:_LONGEST_SHOWN]) for name in names[:_MOST_SHOWN])
    inside, count = _where_most_lie(names)
    where = f"; {count} of them lie in {inside[:_LONGEST_SHOWN]!a}" if inside else ""
    raise InvalidArgument(
        argument,
        f"{number} in {str(folder)!r} are too many to hide or keep: {most}. They begin with {some}{where}",
        remediation="Remove those that are not needed; a program that writes through may have made them. Or hide the "
        "folder that holds them with filesystem.denyRead of a policy, or give a smaller folder.",
    )


def _where_most_lie(names: tuple[str, ...]) -> tuple[str, int]:
    """The innermost folder that holds more than half of ``names``, and how many; empty if none does."""
    ordered = sorted(names)
    inside = os.path.dirname(ordered[len(ordered) // 2])  # the middle name lies in any such folder
    while inside:
        count = bisect_left(ordered, f"{inside}0") - bisect_left(ordered, f"{inside}/")  # 0 follows / in ASCII
        if count * 2 > len(ordered):
            return inside, count
        inside = os.path.dirname(inside)
    return "", 0


def _hide_unlisted(absolute: str, path: str, error: OSError) -> set[str]:
    """A folder that cannot be listed is hidden if its content could still be opened by name, either now or after its
    owner (who the cell may be) changes its permission bits. If the folder cannot even be examined, as in a parent
    without search permission or at too long a path, this applies to its parent."""
    while not isinstance(error, FileNotFoundError | NotADirectoryError):
        try:
            mine = os.geteuid() in (0, os.lstat(absolute).st_uid)  # cells of root can act as any owner
        except OSError as still:
            if not path:
                return {path}
            error, absolute, path = still, os.path.dirname(absolute), os.path.dirname(path)
            continue
        return {path} if mine or os.access(absolute, os.X_OK) else set()
    return set()


def _behind(folder: Path, path: str) -> set[str]:
    end = _way(f"{folder}/{path}")[-1]
    return {inside for inside in [_relative(end, folder)] if inside and os.path.lexists(end)}


def _is_beneath(path: str, others: set[str]) -> bool:
    parts = path.split("/")
    return "" in others or any("/".join(parts[:depth]) in others for depth in range(1, len(parts)))


def _outermost(paths: set[str]) -> tuple[str, ...]:
    if "" in paths:
        return ("",)
    return tuple(sorted(path for path in paths if not _is_beneath(path, paths)))
