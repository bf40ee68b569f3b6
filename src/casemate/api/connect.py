"""The facade's way to a service: a sandbox that lives there, by the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casemate.remote.facade import ConnectedSandbox


class Connecting:
    """Of :class:`casemate.Sandbox`."""

    @staticmethod
    async def connect(
        url: str | None = None,
        token: str | None = None,
        *,
        start: bool = True,
        namespace: str | None = None,
        agent: str | None = None,
        insecure: bool = False,
    ) -> ConnectedSandbox:
        """The same facade on a running service: that at ``url``, or the user's own, which is started unless it runs or
        ``start`` is False.

        ``url``: ``unix:///path``, ``https://host:port``, or ``http://host:port`` of this machine. ``token``: of a
        service on TCP. ``namespace``: which of the user's own. ``agent``: a name under which everything is done with no
        more than an agent's rights. ``insecure``: permits http to other machines. Raises ``InvalidArgument`` and
        ``Unavailable``.
        """
        from casemate.remote.facade import connected_sandbox

        return await connected_sandbox(url, token, start=start, namespace=namespace, agent=agent, insecure=insecure)


def connected_aside(url: str | None, token: str | None, **arguments: Any) -> Any:
    """The same, for other event loops than one of the caller's, which may be running: connected in a thread."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def connect() -> Any:
        connected = await Connecting.connect(url, token, **arguments)
        await connected.close()  # what it was connected with; it connects anew where it is used
        return connected

    with ThreadPoolExecutor(1) as aside:
        return aside.submit(asyncio.run, connect()).result()
