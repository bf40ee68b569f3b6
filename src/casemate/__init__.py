"""casemate: run untrusted code, in real isolation, on an ordinary Linux machine.

The names below are the public API. Each is loaded on first use, so that importing casemate (and starting its
supervisor) costs little.
"""

from __future__ import annotations

from casemate.version import __version__ as __version__

_HOME = {
    "casemate.errors": (
        "CasemateError Denied ExecutionFailed Fault InvalidArgument NotFound NotProved PlanDenied "
        "QueueFull RecordUnavailable RuntimeMissing SandboxClosed ToolUnavailable Unavailable VaultUnavailable "
        "WallUnavailable WebUnavailable"
    ),
    "casemate.model.execution": "Artifact Cause Crossing Execution Image ProgramError Result SkippedFile Usage",
    "casemate.model.approval": "ApprovalRequest Decision allow_all",
    "casemate.model.events": "Display Done ErrorEvent Event Output ResultEvent",
    "casemate.model.isolation": "IsolationReport Mechanism Proof",
    "casemate.model.limits": "Limits",
    "casemate.model.overview": (
        "Fix InUse Inspection Installed InstalledPackage Issue RuntimeInfo Stats Totals Validation VariableInfo"
    ),
    "casemate.model.room": "Room",
    "casemate.host.results": "HostAccess HostAnswer HostResult",
    "casemate.model.web": "BrowsedPage SearchHit WebLink WebPage",
    "casemate.model.preview": "Preview",
    "casemate.model.review": "Applied Change Diff",
    "casemate.audit.chain": "AuditRow Verdict",
    "casemate.audit.reading": "AuditEvent",
    "casemate.execution.egress_request": "EgressAnswer",
    "casemate.policy.inject": "Inject",
    "casemate.api.call_plan": "PlannedCall ProgramPlan",
    "casemate.api.sandbox": "Sandbox",
    "casemate.sessions.files": "FileInfo",
    "casemate.sessions.run": "Run",
    "casemate.sessions.session": "Session",
    "casemate.sessions.protocol": "Variable",
    "casemate.surfaces.notebook": "widget",
    "casemate.tools.connections.answers": "Answer",
    "casemate.tools.tools": "ToolSummary",
    "casemate.version": "__version__",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from casemate.api.call_plan import PlannedCall as PlannedCall
    from casemate.api.call_plan import ProgramPlan as ProgramPlan
    from casemate.api.sandbox import Sandbox as Sandbox
    from casemate.audit.chain import AuditRow as AuditRow
    from casemate.audit.chain import Verdict as Verdict
    from casemate.audit.reading import AuditEvent as AuditEvent
    from casemate.errors import CasemateError as CasemateError
    from casemate.errors import Denied as Denied
    from casemate.errors import ExecutionFailed as ExecutionFailed
    from casemate.errors import Fault as Fault
    from casemate.errors import InvalidArgument as InvalidArgument
    from casemate.errors import NotFound as NotFound
    from casemate.errors import NotProved as NotProved
    from casemate.errors import PlanDenied as PlanDenied
    from casemate.errors import QueueFull as QueueFull
    from casemate.errors import RecordUnavailable as RecordUnavailable
    from casemate.errors import RuntimeMissing as RuntimeMissing
    from casemate.errors import SandboxClosed as SandboxClosed
    from casemate.errors import ToolUnavailable as ToolUnavailable
    from casemate.errors import Unavailable as Unavailable
    from casemate.errors import VaultUnavailable as VaultUnavailable
    from casemate.errors import WallUnavailable as WallUnavailable
    from casemate.errors import WebUnavailable as WebUnavailable
    from casemate.execution.egress_request import EgressAnswer as EgressAnswer
    from casemate.host.results import HostAccess as HostAccess
    from casemate.host.results import HostAnswer as HostAnswer
    from casemate.host.results import HostResult as HostResult
    from casemate.model.approval import ApprovalRequest as ApprovalRequest
    from casemate.model.approval import Decision as Decision
    from casemate.model.approval import allow_all as allow_all
    from casemate.model.events import Display as Display
    from casemate.model.events import Done as Done
    from casemate.model.events import ErrorEvent as ErrorEvent
    from casemate.model.events import Event as Event
    from casemate.model.events import Output as Output
    from casemate.model.events import ResultEvent as ResultEvent
    from casemate.model.execution import Artifact as Artifact
    from casemate.model.execution import Cause as Cause
    from casemate.model.execution import Crossing as Crossing
    from casemate.model.execution import Execution as Execution
    from casemate.model.execution import Image as Image
    from casemate.model.execution import ProgramError as ProgramError
    from casemate.model.execution import Result as Result
    from casemate.model.execution import SkippedFile as SkippedFile
    from casemate.model.execution import Usage as Usage
    from casemate.model.isolation import IsolationReport as IsolationReport
    from casemate.model.isolation import Mechanism as Mechanism
    from casemate.model.isolation import Proof as Proof
    from casemate.model.limits import Limits as Limits
    from casemate.model.overview import Fix as Fix
    from casemate.model.overview import Inspection as Inspection
    from casemate.model.overview import Installed as Installed
    from casemate.model.overview import InstalledPackage as InstalledPackage
    from casemate.model.overview import InUse as InUse
    from casemate.model.overview import Issue as Issue
    from casemate.model.overview import RuntimeInfo as RuntimeInfo
    from casemate.model.overview import Stats as Stats
    from casemate.model.overview import Totals as Totals
    from casemate.model.overview import Validation as Validation
    from casemate.model.overview import VariableInfo as VariableInfo
    from casemate.model.preview import Preview as Preview
    from casemate.model.review import Applied as Applied
    from casemate.model.review import Change as Change
    from casemate.model.review import Diff as Diff
    from casemate.model.room import Room as Room
    from casemate.model.web import BrowsedPage as BrowsedPage
    from casemate.model.web import SearchHit as SearchHit
    from casemate.model.web import WebLink as WebLink
    from casemate.model.web import WebPage as WebPage
    from casemate.policy.inject import Inject as Inject
    from casemate.sessions.files import FileInfo as FileInfo
    from casemate.sessions.protocol import Variable as Variable
    from casemate.sessions.run import Run as Run
    from casemate.sessions.session import Session as Session
    from casemate.surfaces.notebook import widget as widget
    from casemate.tools.connections.answers import Answer as Answer
    from casemate.tools.tools import ToolSummary as ToolSummary
else:
    __all__ = list(_MODULE_OF)


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        from casemate.model.foreign import no_attribute

        raise no_attribute("module 'casemate'", name, _MODULE_OF)
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
