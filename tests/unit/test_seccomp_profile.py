"""packaging/seccomp.json: what its script makes, in a form that every engine reads alike."""

from __future__ import annotations

import json
import runpy

from tests.structure import ROOT

from casemate.supervisor.syscall_numbers import MACHINES, numbers

SCRIPT = runpy.run_path(str(ROOT / "packaging" / "seccomp.py"))
PROFILE = json.loads((ROOT / "packaging" / "seccomp.json").read_text(encoding="utf-8"))


def test_the_file_is_what_its_script_makes() -> None:
    assert SCRIPT["profile"]() == PROFILE


def test_every_name_in_the_script_is_a_system_call() -> None:
    known = {name for machine in MACHINES for name in numbers(machine)}
    named = {*SCRIPT["_REFUSED"].split(), *SCRIPT["_CONDITIONAL"], *SCRIPT["_ADDED"]}
    assert named - known == set()


def test_no_rule_has_a_condition_that_some_engines_do_not_read() -> None:
    assert set(PROFILE) == {"defaultAction", "defaultErrnoRet", "syscalls"}
    fields = {field for rule in PROFILE["syscalls"] for field in rule}
    assert fields == {"names", "action", "errnoRet", "args", "comment"}


def test_what_an_engine_refuses_by_default_is_permitted_with_a_reason_of_its_own() -> None:
    reasons = {name: rule["comment"] for rule in PROFILE["syscalls"] for name in rule["names"]}
    added = set(SCRIPT["_REFUSED"].split()) & set(reasons)
    assert added == set(SCRIPT["_ADDED"]) - {"clone"}  # of which engines permit some
    assert "what engines permit by default" not in {reasons[name] for name in added}
