"""``host``: commands and files of the host."""

from __future__ import annotations

import base64
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from casemate.api.options import Names
from casemate.errors import InvalidArgument
from casemate.host.files import MOST_READ
from casemate.host.host import HostAccess, HostAnswer, HostResult, session_in
from casemate.model.call_options import Seconds
from casemate.model.operation import Audience, Between, Most, Principal, operation
from casemate.operations.files import decode_base64
from casemate.operations.resources import Reason
from casemate.operations.sessions import Group
from casemate.policy.host import MOST_WORD_BYTES, MOST_WORDS
from casemate.sessions.files import FileInfo

Words = Annotated[Sequence[Annotated[str, Most(MOST_WORD_BYTES)]], Most(MOST_WORDS)]
Command = Annotated[str, Most(MOST_WORD_BYTES)] | Words
Path = Annotated[str, Most(4096)]
Offset = Annotated[int, Between(0, 2**62)]
Length = Annotated[int, Between(1, MOST_READ)]
Text = Annotated[str, Most(16 << 20)]


@dataclass(frozen=True, slots=True)
class HostContent:
    """Bytes of a file: as ``text`` where they are UTF-8, else in ``base64``."""

    text: str | None
    base64: str | None


class HostOperations(Group):
    """What of the host the operator's policy opens."""

    @operation(audience=Audience.AGENT)
    async def exec(
        self,
        command: Command,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the command's
        secrets: Names = (),
        principal: Principal,
    ) -> HostResult:
        """Run a command of the host, without any shell, once a rule or somebody has allowed exactly it.

        ``command``: its words, the program's bare name first; or a line of plain words. ``timeout``: seconds, of those
        that the policy gives. ``secrets``: names of secrets that it gets as variables.
        """
        given: Any = await self._shared.secrets_for(principal, secrets) if secrets else ()
        return await self._shared.sandbox.host.exec(command, timeout=timeout, secrets=given)

    @operation(audience=Audience.AGENT)
    async def request_access(self, command: Command, *, reason: Reason = "") -> HostAnswer:
        """Ask whether a command may be run later, wait until somebody decides, and say what was decided.

        ``command``: its words, exactly. ``reason``: shown to whoever decides, as the requester's own words.
        """
        return await self._shared.sandbox.host.request_access(command, reason=reason)

    @operation(audience=Audience.AGENT)
    async def access(self) -> HostAccess:
        """What of the host is open, which commands were allowed or denied, and what waits for an answer."""
        return await self._shared.sandbox.host.access()

    @operation(audience=Audience.AGENT)
    async def read(self, path: Path, *, offset: Offset = 0, limit: Length = MOST_READ) -> HostContent:
        """Bytes of a file in a folder that the policy names. ``path``: absolute. ``offset``: byte to begin at.
        ``limit``: bytes at the most."""
        data = await self._shared.sandbox.host.read(path, offset=offset, limit=limit)
        try:
            return HostContent(data.decode(), None)
        except UnicodeDecodeError:
            return HostContent(None, base64.b64encode(data).decode())

    @operation(audience=Audience.AGENT)
    async def list(self, path: Path) -> builtins.list[FileInfo]:
        """What is in a folder that the policy names, or in one beneath it. ``path``: absolute."""
        return await self._shared.sandbox.host.list(path)

    @operation(audience=Audience.AGENT)
    async def write(self, path: Path, *, text: Text | None = None, content: Text | None = None) -> FileInfo:
        """Write a file in a folder that the policy opens for writing, once a rule has allowed it, or somebody who has
        seen the difference. ``path``: absolute. ``text``: what it is to hold. ``content``: the same, in base64.
        """
        if (text is None) == (content is None):
            raise InvalidArgument("text", "give text, or content in base64")
        data = text if text is not None else decode_base64("content", content or "")
        return await self._shared.sandbox.host.write(path, data)

    @operation(audience=Audience.AGENT)
    async def copy(self, source: Path, destination: Path, *, principal: Principal) -> FileInfo | None:
        """Copy a file between open folders of the host, or into or out of a session's workspace.

        ``source``: an absolute path, or HANDLE:path of a session. ``destination``: the same.
        """
        return await self._shared.sandbox.host.copy(
            self._resolve(source, principal), self._resolve(destination, principal)
        )

    def _resolve(self, text: str, principal: Principal) -> str:
        """The same with the session's own id: only the caller's own sessions are found."""
        handle, path = session_in(text)
        return text if handle is None else f"{self._id_of(handle, principal)}:{path}"
