"""A sandbox of a service and one without ``await`` have the methods of the local one, with the same signatures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from casemate import Sandbox, Session, sync
from casemate.api.call_plan import ProgramPlan
from casemate.operations import PARTS, SESSION
from casemate.operations.catalogue import catalogue
from casemate.operations.documents import type_named
from casemate.remote.facade import ConnectedSandbox
from casemate.remote.runs import Run as ConnectedRun
from casemate.remote.session import Session as ConnectedSession
from casemate.sessions.files import SessionFiles
from casemate.sessions.registry import Sessions
from casemate.sessions.run import Run

SERVICE: Any = SimpleNamespace(address="nowhere")
CONNECTED: Any = ConnectedSandbox(SERVICE)
SESSION_OF_SERVICE: Any = ConnectedSession({"session": "1", "name": None, "language": "python"}, SERVICE)
PAIRS: list[tuple[type, Any]] = [
    (Sandbox, CONNECTED),
    *((type_named(local), getattr(CONNECTED, name)) for name, local in PARTS.items()),
    (type_named(SESSION), SESSION_OF_SERVICE),
    (SessionFiles, SESSION_OF_SERVICE.files),
    (Run, ConnectedRun({"run": "1"}, SERVICE)),
]
OF_THIS_PROCESS = {  # public names that a service does not have: most of them are for other modules
    "Sandbox": "connect from_env from_file language_of limits namespace warm_up",
    "Approvals": "answer_function ask_ahead check close drain drop_channel forget_session grant ignore may_ask open "
    "open_requester pending_count requester rules set_store turn",
    "Artifacts": "close keep",
    "Audit": "rows_about",
    "Evidence": "sign write",
    "Host": "close",
    "Packages": "begin close install_for install_kept prepare shared_folders",
    "Sessions": "add close",
    "Tools": "addresses_of catalogue close describe_aside explain_missing find_problems module "
    "resolve_tool search_all send_call server_folders servers",
    "Vault": "check_names host_secrets resolve resolve_async",
    "Web": "close",
    "Session": "is_busy record_open show_packages",
    "SessionFiles": "read_part",
    "Run": "end forget has_begun is_done",
}
OTHERWISE = {  # methods that take something else
    ("Sandbox", "set_limits"),  # also limits as one argument
    ("Evidence", "save"),  # no outcomes: the service keeps them
}


def public_names(kind: type) -> Iterator[str]:
    return (name for name in dir(kind) if not name.startswith("_"))


def parameters_of(method: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults, without that of the object itself."""
    found = inspect.signature(method).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


@pytest.mark.parametrize(("local", "connected"), PAIRS, ids=[local.__name__ for local, _ in PAIRS])
def test_a_connected_sandbox_has_the_names_and_signatures_of_a_local_one(local: type, connected: Any) -> None:
    left_out = set(OF_THIS_PROCESS.get(local.__name__, "").split())
    assert {name for name in public_names(local) if not hasattr(connected, name)} == left_out
    for name in set(public_names(local)) - left_out:
        method = getattr(local, name)
        if callable(method) and (local.__name__, name) not in OTHERWISE:
            assert parameters_of(getattr(connected, name)) == parameters_of(method), name
            assert inspect.iscoroutinefunction(getattr(connected, name)) == inspect.iscoroutinefunction(method), name


def test_every_operation_of_a_part_is_a_method_of_the_connected_one() -> None:
    for name in catalogue():
        part, _, method = name.partition(".")
        if part not in PARTS or method in OF_THIS_PROCESS.get(part.title(), "").split():
            continue
        assert not hasattr(type_named(PARTS[part]), method) or hasattr(getattr(CONNECTED, part), method), name


def test_every_part_of_a_sandbox_is_listed() -> None:
    parts = {name for name in public_names(Sandbox) if not callable(getattr(Sandbox, name))} - {"limits", "namespace"}
    assert parts == PARTS.keys()


@pytest.mark.parametrize(
    ("local", "blocking"),
    [(Sandbox, sync.Sandbox), (Session, sync.Session), (Sessions, sync.Sessions), (Run, sync.Run),
     (ProgramPlan, sync.ProgramPlan)],
)  # fmt: skip
def test_a_sandbox_without_await_has_the_signatures_of_the_awaited_one(local: type, blocking: type) -> None:
    left_out = {"from_env", "from_file", "connect", "end", "show_packages", "record_open", "forget", "add"}
    methods = {name for name in public_names(local) if callable(getattr(local, name))} - left_out
    if local is Sessions:
        methods.remove("close")
    assert methods - set(dir(blocking)) == set()
    for name in methods:
        assert parameters_of(getattr(blocking, name)) == parameters_of(getattr(local, name)), name
        assert not inspect.iscoroutinefunction(getattr(blocking, name)), name


def test_a_part_without_await_shows_what_the_awaited_one_takes() -> None:
    part = sync.Blocking(CONNECTED.vault, lambda call: call())
    assert parameters_of(part.set) == parameters_of(type_named(PARTS["vault"]).set)
    assert part.set.__doc__ == CONNECTED.vault.set.__doc__
