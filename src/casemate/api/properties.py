"""The parts of a sandbox, each made when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casemate.api.wiring import SandboxParts
    from casemate.approvals.approvals import Approvals
    from casemate.artifacts.kept import Artifacts
    from casemate.audit.reading import Audit
    from casemate.execution.egress_request import Egress
    from casemate.execution.evidence import Evidence
    from casemate.host.host import Host
    from casemate.model.limits import Limits
    from casemate.sessions.packages import Packages
    from casemate.sessions.registry import Sessions
    from casemate.tools.tools import Tools
    from casemate.vault.vault import Vault
    from casemate.web.web import Web


class SandboxProperties:
    """What a sandbox has besides its methods."""

    def __init__(self, parts: SandboxParts) -> None:
        self._parts = parts

    @property
    def artifacts(self) -> Artifacts:
        """Files that the last runs left, by a run's id: ``await`` ``list(run)`` and ``read(run, name)``."""
        return self._parts.artifacts

    @property
    def audit(self) -> Audit:
        """The record of its namespace: ``await`` ``tail(limit)`` and ``verify()``."""
        return self._parts.audit

    @property
    def evidence(self) -> Evidence:
        """What proves what ran: ``await`` ``statement(run)`` and ``save(run_or_session, path)``."""
        return self._parts.evidence

    @property
    def egress(self) -> Egress:
        """Hosts that programs may reach, asked for before a program needs them: ``await request(domain)``."""
        self._parts.check_open()
        return self._parts.egress

    @property
    def web(self) -> Web:
        """The web: ``await`` ``search(query)``, ``fetch(url)`` and ``browse(url)``, under the rules of the network."""
        self._parts.check_open()
        return self._parts.web

    @property
    def host(self) -> Host:
        """Commands and files of the host that a policy opens: ``await exec(words)``, ``read(path)``, ``access()``."""
        self._parts.check_open()
        return self._parts.host

    @property
    def namespace(self) -> str:
        """Whose secrets there are, and what each row of the record carries."""
        return self._parts.namespace

    @property
    def limits(self) -> Limits:
        """The most that any run may use."""
        return self._parts.context.limits

    @property
    def sessions(self) -> Sessions:
        """The open sessions: ``await sandbox.sessions.get(id_or_name)``, ``.list()`` and ``.bridge(name, a, b)``."""
        return self._parts.sessions

    @property
    def approvals(self) -> Approvals:
        """What waits to be approved: ``.pending()``, ``.decide(id, allow)``, ``.open()``, ``.rules``."""
        return self._parts.approvals

    @property
    def tools(self) -> Tools:
        """MCP servers, whose tools programs call as functions: ``await`` ``add(name, definition)``, ``list()``,
        ``search(query)``, ``call(server, tool, arguments)``."""
        return self._parts.tools

    @property
    def vault(self) -> Vault:
        """The secrets of its namespace: ``await`` ``set(name, value)``, ``delete(name)`` and ``names()``."""
        return self._parts.vault

    @property
    def packages(self) -> Packages:
        """Packages of the operator's index: ``await`` ``install(names)``, ``list()`` and ``remove(names)``."""
        return self._parts.packages
