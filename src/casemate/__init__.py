"""casemate: run code nobody has read, in real isolation, on an ordinary Linux machine.

The names below are the public API. They are loaded when first used, so that importing
casemate (and starting its supervisor) costs little.
"""

from __future__ import annotations

from casemate.version import __version__

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from casemate.api.call_plan import PlannedCall, ProgramPlan
    from casemate.api.sandbox import Sandbox
    from casemate.audit.chain import AuditRow, Verdict
    from casemate.audit.reading import AuditEvent
    from casemate.errors import (
        CasemateError,
        Denied,
        ExecutionFailed,
        Fault,
        InvalidArgument,
        NotFound,
        NotProved,
        PlanDenied,
        QueueFull,
        RecordUnavailable,
        RuntimeMissing,
        SandboxClosed,
        ToolUnavailable,
        Unavailable,
        VaultUnavailable,
        WallUnavailable,
        WebUnavailable,
    )
    from casemate.execution.egress_request import EgressAnswer
    from casemate.host.host import HostAccess, HostAnswer, HostResult
    from casemate.model.approval import ApprovalRequest, Decision, allow_all
    from casemate.model.events import Display, Done, ErrorEvent, Event, Output, ResultEvent
    from casemate.model.execution import (
        Artifact,
        Cause,
        Crossing,
        Execution,
        Image,
        ProgramError,
        Result,
        SkippedFile,
        Usage,
    )
    from casemate.model.isolation import IsolationReport, Mechanism, Proof
    from casemate.model.limits import Limits
    from casemate.model.overview import (
        Fix,
        Inspection,
        Installed,
        InstalledPackage,
        InUse,
        Issue,
        RuntimeInfo,
        Stats,
        Totals,
        Validation,
        VariableInfo,
    )
    from casemate.model.preview import Preview
    from casemate.model.review import Applied, Change, Diff
    from casemate.model.room import Room
    from casemate.model.web import BrowsedPage, SearchHit, WebLink, WebPage
    from casemate.policy.inject import Inject
    from casemate.sessions.files import FileInfo
    from casemate.sessions.protocol import Variable
    from casemate.sessions.run import Run
    from casemate.sessions.session import Session
    from casemate.surfaces.notebook import widget
    from casemate.tools.connections.answers import Answer
    from casemate.tools.tools import ToolSummary

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
    "casemate.host.host": "HostAccess HostAnswer HostResult",
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
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Answer",
    "Applied",
    "ApprovalRequest",
    "Artifact",
    "AuditEvent",
    "AuditRow",
    "BrowsedPage",
    "CasemateError",
    "Cause",
    "Change",
    "Crossing",
    "Decision",
    "Denied",
    "Diff",
    "Display",
    "Done",
    "EgressAnswer",
    "ErrorEvent",
    "Event",
    "Execution",
    "ExecutionFailed",
    "Fault",
    "FileInfo",
    "Fix",
    "HostAccess",
    "HostAnswer",
    "HostResult",
    "Image",
    "InUse",
    "Inject",
    "Inspection",
    "Installed",
    "InstalledPackage",
    "InvalidArgument",
    "IsolationReport",
    "Issue",
    "Limits",
    "Mechanism",
    "NotFound",
    "NotProved",
    "Output",
    "PlanDenied",
    "PlannedCall",
    "Preview",
    "ProgramError",
    "ProgramPlan",
    "Proof",
    "QueueFull",
    "RecordUnavailable",
    "Result",
    "ResultEvent",
    "Room",
    "Run",
    "RuntimeInfo",
    "RuntimeMissing",
    "Sandbox",
    "SandboxClosed",
    "SearchHit",
    "Session",
    "SkippedFile",
    "Stats",
    "ToolSummary",
    "ToolUnavailable",
    "Totals",
    "Unavailable",
    "Usage",
    "Validation",
    "Variable",
    "VariableInfo",
    "VaultUnavailable",
    "Verdict",
    "WallUnavailable",
    "WebLink",
    "WebPage",
    "WebUnavailable",
    "__version__",
    "allow_all",
    "widget",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        from casemate.model.foreign import no_attribute

        raise no_attribute("module 'casemate'", name, __all__)
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
