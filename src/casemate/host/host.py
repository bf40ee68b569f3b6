"""``sandbox.host``: host commands and host files, as far as the policy opens them."""

from __future__ import annotations

import asyncio
import builtins
import os
import shlex
import shutil
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakValueDictionary

from casemate.errors import CasemateError, Denied, InvalidArgument
from casemate.files.beneath import hold, pieces_of, write_all
from casemate.files.temporary import TemporaryFolder
from casemate.host import files
from casemate.host.files import HostPlace, find_place
from casemate.host.results import HostAccess, HostAnswer, HostResult, content_of
from casemate.host.runner import CommandRunner, HostCommand
from casemate.model.approval import ApprovalRequest, Question
from casemate.model.kinds import Reason
from casemate.model.operation import Audience, Between, Most, account, agent, caller, operation
from casemate.model.plan import NO_SECRETS, Secrets
from casemate.policy.host import (
    ENVIRONMENT,
    MOST_WORD_BYTES,
    MOST_WORDS,
    NO_REPOSITORY,
    HostTerms,
    files_above,
    risk_of_index,
    risk_of_keys,
    starts_git,
    words_of,
)
from casemate.policy.patterns import base_name
from casemate.sessions.files import FileInfo
from casemate.tools.connections.own import calling_requester
from casemate.visible import begin

if TYPE_CHECKING:
    from casemate.approvals.approvals import Approvals
    from casemate.sessions.session import Session

Command = (
    Annotated[str, Most(MOST_WORD_BYTES)] | Annotated[Sequence[Annotated[str, Most(MOST_WORD_BYTES)]], Most(MOST_WORDS)]
)
HostPath = Annotated[str, Most(4096)]
Offset = Annotated[int, Between(0, 2**62)]
Length = Annotated[int, Between(1, files.MOST_READ)]
_MOST_KNOWN = 1000  # commands asked about, which `access` shows
_MOST_AT_ONCE = 16  # commands and writes of one caller that wait or run; further ones queue
_MOST_SUMMARY = 300  # characters of a command
_MOST_OF_GIT = 16 << 20  # bytes of git's output about a repository


@dataclass(frozen=True, slots=True)
class HostSurroundings:
    """What :class:`Host` needs of its sandbox."""

    namespace: str
    approvals: Callable[[], Approvals]
    record: Callable[[str, Mapping[str, object]], object]  # a crossing of a run
    resolve: Callable[[object], Awaitable[Secrets]]  # secrets by name
    session: Callable[[str], Awaitable[Session]]  # an open session by id or name
    workspace: str | None = None  # the folder that programs write to, if any
    is_direct: bool = False  # whether they write to it directly
    # Why a path in an open folder may not be read, or written if the second argument is true; empty if it may. Blocks.
    why_closed: Callable[[str, bool], str] = lambda _path, _writes: ""


class Host:
    """Host commands and host files. Nothing is open unless the policy's ``host`` section opens it."""

    def __init__(self, terms: HostTerms | None, surroundings: HostSurroundings) -> None:
        self._terms = terms
        self._of = surroundings
        self._runner = CommandRunner()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by account
        self._known: OrderedDict[str, Question] = OrderedDict()  # commands asked about, by their text

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's
        secrets: Sequence[str] = (),
    ) -> HostResult:
        """Run a host command without a shell, once a rule or an approver has allowed exactly these words.

        Args:
            command: Its words, or one line of plain words.
            timeout: Time limit in seconds; the policy's limit is the default and the maximum.
            secrets: Names of secrets that it gets as variables.

        Returns:
            The result, also of a command that failed or timed out.

        Raises:
            InvalidArgument: The command cannot be run.
            Denied: The command was not allowed, or commands are not open.
            Unavailable: This machine cannot isolate or start it.
        """
        terms = self._open_terms()
        words = words_of(command)
        if timeout is not None and not 0 < timeout <= terms.timeout:
            raise InvalidArgument(
                "timeout", f"{timeout!r} is not within the {terms.timeout:g} s that the policy gives ({terms.where})"
            )
        async with self._turn():
            program = await asyncio.to_thread(self._find, words[0])
            given = await self._of.resolve(secrets) if secrets else NO_SECRETS
            if given.placeholders:
                raise InvalidArgument(
                    "secrets", f"{given.placeholders[0].name} is only for injection into requests; no command gets it"
                )
            question = _about(words, program, terms, given.names)
            self._remember(question)
            run = await self._ask(question)
            await asyncio.to_thread(_check_above, words[0], terms)
            await self._check_repository(words[0], terms)
            env = {"PATH": ":".join(terms.path), **ENVIRONMENT, **terms.env, **given.reveal()}
            order = HostCommand(program, words, env, terms.folder or "/", timeout or terms.timeout, terms.output)
            return await self._run(order, run, given)

    async def _run(self, order: HostCommand, run: str, secrets: Secrets) -> HostResult:
        crossing = {"kind": "host", "argv": [*order.argv], "program": order.program}
        self._of.record(run, {**crossing, "outcome": "begun"})
        status, code = "cancelled", None
        try:
            end = await self._runner.run(order)
            code = None if end.wait_status is None else os.waitstatus_to_exitcode(end.wait_status)
            code = 128 - code if code is not None and code < 0 else code
            status = "timeout" if code is None else "ok" if code == 0 else "failed"
        except CasemateError as error:
            status = error.kind
            raise
        finally:
            self._of.record(run, {**crossing, "outcome": status, "exit_code": code})
        stdout, stderr = (_text(data, secrets) for data in (end.stdout, end.stderr))
        return HostResult(order.argv, order.program, status, code, stdout, stderr, end.is_truncated, end.seconds)

    @operation(audience=Audience.AGENT)
    async def request_access(self, command: Command, *, reason: Reason = "") -> HostAnswer:
        """Ask for approval of a command in advance, and return the answer. It covers exactly these words.

        Args:
            command: Its words, exactly.
            reason: Shown to the approver as the requester's own words.

        Raises:
            InvalidArgument: It is not a command, or has a wildcard, which only policy rules may have.
            Denied: Commands are not open.
        """
        terms = self._open_terms()
        if any(word in ("*", "**") for word in (command.split() if isinstance(command, str) else command or ())):
            raise InvalidArgument(
                "command",
                "an answer covers one exact command, and this one has a wildcard",
                remediation="Ask for the command; a policy's rules take wildcards: {allow: host, command: wc *}.",
            )
        words = words_of(command)
        question = _about(words, await asyncio.to_thread(self._find, words[0]), terms, ())
        self._remember(question)
        async with self._turn():
            return HostAnswer(words, *await self._of.approvals().ask_ahead(question, reason, self._of.namespace))

    @operation(audience=Audience.AGENT)
    async def access(self) -> HostAccess:
        """Show what of the host is open, what was allowed or denied, and what waits for an answer."""
        terms, approvals = self._terms or HostTerms(), self._of.approvals()
        written = [rule for rule in approvals.rules.rules.written if rule.kind == "host"]
        patterns = {
            effect: tuple(str(rule.command or "every command") for rule in written if rule.effect == effect)
            for effect in ("allow", "deny")
        }
        now, answered = time.monotonic(), approvals.rules.answers
        asked = [replace(one, namespace=self._of.namespace, agent=agent()) for one in self._known.values()]
        known = [one for one in asked if any(rule.covers(one) for rule in answered)]
        effects = [(approvals.rules.judge(one, now)[0], shlex.join(one.arguments["argv"])) for one in known]
        return HostAccess(
            terms.folder,
            patterns["allow"],
            tuple(text for effect, text in effects if effect == "allow"),
            (*patterns["deny"], *(text for effect, text in effects if effect == "deny")),
            tuple(one.summary for one in approvals.pending() if one.kind in ("host", "files") and _is_own(one)),
            tuple(root.path for root in terms.roots),
            tuple(root.path for root in terms.roots if root.write),
        )

    @operation(audience=Audience.AGENT, gives=content_of)
    async def read(self, path: HostPath, *, offset: Offset = 0, limit: Length = files.MOST_READ) -> bytes:
        """Read a file beneath a folder that the policy names.

        Args:
            path: Absolute path; links in it are not followed.
            offset: Byte to begin at.
            limit: Maximum number of bytes, up to 16 MiB.

        Raises:
            InvalidArgument: The path is not a file.
            Denied: The path is in no open folder.
        """
        place = await self._find_open(path)
        data = await asyncio.to_thread(files.read, place, offset, limit)
        self._note("read", place)
        return data

    @operation(audience=Audience.AGENT)
    async def list(self, path: HostPath) -> builtins.list[FileInfo]:
        """List a folder that the policy names, or one beneath it, sorted by name.

        Args:
            path: Absolute path.

        Raises:
            InvalidArgument: The path is not a folder, or has more than a thousand entries.
            Denied: The path is in no open folder.
        """
        place = await self._find_open(path)
        found = await asyncio.to_thread(files.list_folder, place)
        self._note("list", place)
        return found

    async def write(self, path: str, content: bytes | str) -> FileInfo:
        """Write a file beneath a folder that is open for writing, whole or not at all. A rule must allow it, or an
        approver, who sees the diff.

        Raises:
            InvalidArgument: The path cannot be written, or the file was changed meanwhile.
            Denied: The write was not allowed, the folder is not open, or the name is protected.
            Unavailable: The disk is full or fails.
        """
        place = await self._find_open(path, writes=True)
        try:
            data = content.encode() if isinstance(content, str) else bytes(content)
        except UnicodeEncodeError:
            raise InvalidArgument("content", "cannot be encoded as UTF-8; give bytes") from None
        async with self._turn():
            with hold(os.memfd_create("casemate-host-file", os.MFD_CLOEXEC)) as new:
                write_all(new, data)
                return await self._write(place, new)

    async def copy(self, source: str, destination: str) -> FileInfo | None:
        """Copy a file between open folders of the host, or into or out of a session's workspace.

        Args:
            source: An absolute path, or ``SESSION:path`` with the id or name of an open session.
            destination: The same.

        Returns:
            The host file that was written; None if the destination is a session's.

        Raises:
            InvalidArgument: One of them is not a file, or both are in sessions.
            Denied: The copy was not allowed, or a folder is not open.
        """
        (of, inner), (into, target) = session_in(source), session_in(destination)
        if of is not None and into is not None:
            raise InvalidArgument("destination", "source or destination must be a host path, such as /data/table.csv")
        place = await self._find_open(target, writes=True, argument="destination") if into is None else None
        async with self._turn():
            folder = await asyncio.to_thread(TemporaryFolder, "host-copy")
            held = folder.path / "file"
            try:
                if of is not None:
                    await (await self._of.session(of)).files.download(inner, held)
                else:
                    taken = await self._find_open(inner, argument="source")
                    await asyncio.to_thread(_take, taken, str(held))
                    self._note("read", taken)
                if into is not None:
                    await (await self._of.session(into)).files.upload(held, target)
                    return None
                assert place is not None
                with held.open("rb", buffering=0) as new:
                    return await self._write(place, new.fileno())
            finally:
                await asyncio.to_thread(folder.remove)

    def close(self) -> None:
        """End the process that runs commands."""
        self._runner.close()

    async def _write(self, place: HostPlace, new: int) -> FileInfo:
        change, before = await asyncio.to_thread(files.describe_change, place, new)
        summary = f"write {place.path}, {change['size']:,} bytes" + ("" if before else ", a new file")
        question = Question("files", summary, {"action": "write", "path": place.path, "change": change})
        await self._ask(question)
        written = await asyncio.to_thread(files.write, place, new, before)
        self._note("write", place, sha256=change["sha256"])
        return written

    async def _ask(self, question: Question) -> str:
        """Return the id under which the record has the approval of ``question``. Raises ``Denied``."""
        approvals, calling = self._of.approvals(), calling_requester()
        opened = nullcontext(calling) if calling else approvals.open_requester(self._of.namespace)
        async with approvals.turn(), opened as requester:
            verdict = await asyncio.wrap_future(requester.decide(question))
            if not verdict.allow:
                raise Denied(verdict.reason or "it was asked for and not approved")
            return str(requester.run)

    async def _find_open(self, path: str, *, writes: bool = False, argument: str = "path") -> HostPlace:
        place = find_place(self._terms, path, write=writes, argument=argument)
        if why := await asyncio.to_thread(self._of.why_closed, place.path, writes):
            raise Denied(f"{place.path} cannot be {'written' if writes else 'read'}: {why}")
        return place

    def _turn(self) -> asyncio.Semaphore:
        return self._turns.setdefault(account() or caller(), asyncio.Semaphore(_MOST_AT_ONCE))

    def _note(self, action: str, place: HostPlace, **more: object) -> None:
        self._of.record("", {"kind": "files", "action": action, "path": place.path, **more})

    def _open_terms(self) -> HostTerms:
        if self._terms is None or self._terms.folder is None:
            raise Denied(
                "the policy opens no commands of the host",
                remediation="The operator's policy names the folder that they run in: host: {folder: /srv/project}.",
            )
        folder, written = self._terms.folder, self._of.workspace if self._of.is_direct else None
        if written and (_is_within(folder, written) or _is_within(written, folder)):
            raise Denied(
                f"commands are not run in {folder}: programs of this sandbox write there directly, and "
                "what they leave could steer a command (workspace_mode)"
            )
        return self._terms

    def _find(self, name: str) -> str:
        """Return the path of a program in the policy's ``path``. Raises ``InvalidArgument``."""
        terms = self._open_terms()
        places = (*filter(None, [self._of.workspace]), *(root.path for root in terms.roots if root.write))
        path = shutil.which(name, path=os.pathsep.join(terms.path))
        if path is None:
            raise InvalidArgument("command", f"there is no program {name!r} in {', '.join(terms.path)}")
        is_open = os.stat(os.path.dirname(os.path.realpath(path))).st_mode & 0o002  # a file in it can be replaced
        if os.stat(path).st_mode & 0o022 or is_open or any(_is_within(path, place) for place in places):
            raise InvalidArgument("command", f"{path} could be changed by others, so it is not run")
        return path

    def _remember(self, question: Question) -> None:
        self._known[shlex.join(question.arguments["argv"])] = question
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def _check_repository(self, name: str, terms: HostTerms) -> None:
        """Raise ``Denied`` if git could start a program that the repository's configuration names (git-config(1)), or
        if a repository within has its own configuration."""
        if not starts_git(base_name(name)):
            return
        keys = await self._ask_git(terms, "config", "--null", "--name-only", "--list", "--local", "--includes")
        why = risk_of_keys(keys) if keys is not None else ""
        if keys is not None and not why:  # with a bad configuration, this call could start a program
            why = risk_of_index(await self._ask_git(terms, "ls-files", "--stage", ":/") or b"")
        if why:
            raise Denied(f"git is not run in {terms.folder}: {why}")

    async def _ask_git(self, terms: HostTerms, *words: str) -> bytes | None:
        """Return git's output; None if there is no repository. Raises ``Denied``."""
        env = {"PATH": ":".join(terms.path), **ENVIRONMENT}
        order = HostCommand(self._find("git"), ("git", *words), env, terms.folder or "/", 10.0, _MOST_OF_GIT)
        end = await self._runner.run(order)
        if end.stderr == NO_REPOSITORY:
            return None
        if end.wait_status != 0 or end.is_truncated:
            said = end.stderr[:200].decode("utf-8", "replace").strip()
            raise Denied(f"git is not run in {terms.folder}: the repository cannot be looked through: {said}")
        return end.stdout


def _about(words: tuple[str, ...], program: str, terms: HostTerms, secrets: Sequence[str]) -> Question:
    """Make the question about a command; it is the same in advance and when the command runs."""
    line = shlex.join(words)
    shown = begin(line, _MOST_SUMMARY)
    arguments: dict[str, Any] = {"argv": [*words], "program": program, "folder": terms.folder}
    arguments |= {"secrets": sorted(secrets)} if secrets else {}
    return Question("host", f"run {shown} on the host, in {terms.folder}", arguments)


def _check_above(name: str, terms: HostTerms) -> None:
    """Raise ``Denied`` if a file above the commands' folder, which the policy does not open, controls the program."""
    above = Path(terms.folder or "/").resolve().parents
    for found in (folder / file for folder in above for file in files_above(base_name(name))):
        if os.path.lexists(found):
            raise Denied(
                f"{name} is not run in {terms.folder}: it takes settings or programs from {found} above it",
                remediation=f"Name the folder that has it: host: {{folder: {found.parent}}}.",
            )


def _is_own(request: ApprovalRequest) -> bool:
    """Whether the caller may see a request: the application sees all, an agent only its own."""
    return not agent() or request.caller == agent()


def _is_within(path: str, folder: str) -> bool:
    return Path(path).resolve().is_relative_to(Path(folder).resolve())


def session_in(text: str) -> tuple[str | None, str]:
    """Split ``SESSION:path`` into a session and its path; a host path has None as its session."""
    if not isinstance(text, str) or text.startswith("/") or ":" not in text:
        return None, text
    session, _, path = text.partition(":")
    return session, path


def _take(place: HostPlace, target: str) -> None:
    """Copy a host file to ``target``, a new file. Raises ``InvalidArgument``."""
    with files.open_file(place) as source, open(target, "xb") as new:
        new.writelines(pieces_of(source, files.MOST_COPY + 1))
        if new.tell() > files.MOST_COPY:
            raise InvalidArgument(
                "source", f"{place.path} has more than {files.MOST_COPY >> 20} MiB, which is the limit"
            )


def _text(data: bytes, secrets: Secrets) -> str:
    if secrets:
        from casemate.redaction.redaction import Redaction

        data = Redaction(secrets.reveal()).data(data, cut=True)
    return data.decode("utf-8", "replace")
