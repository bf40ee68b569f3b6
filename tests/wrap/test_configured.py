"""What is configured binds a wrapped command as it does a run; what cannot be kept is refused before it starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.wrap.conftest import Wrap

from casemate.audit.log import AuditLog

LIMITS = "ulimit -n"


def configured(wrap: Wrap, **variables: object) -> Wrap:
    return replace(wrap, env={**wrap.env, **{f"CASEMATE_{name}": str(value) for name, value in variables.items()}})


def policy(wrap: Wrap, **keys: object) -> Path:
    file = wrap.folder.parent / "policy.json"
    file.write_text(json.dumps(keys))
    return file


def test_a_limit_that_is_configured_holds_and_an_option_goes_over_it(wrap: Wrap) -> None:
    limited = configured(wrap, LIMITS_OPEN_FILES=77)
    assert limited.shell(LIMITS).stdout == b"77\n"
    assert limited.shell(LIMITS, "--open-files", "99").stdout == b"99\n"


def test_a_policy_that_is_configured_holds_and_a_limit_beside_it_only_narrows(wrap: Wrap) -> None:
    file = policy(wrap, limits={"open_files": 88}, filesystem={"denyRead": ["notes.txt"]})
    limited = configured(wrap, POLICY=file)
    done = limited.shell(f"{LIMITS}; cat notes.txt")
    assert (done.stdout, b"Permission denied" in done.stderr) == (b"88\n", True)
    assert configured(limited, LIMITS_OPEN_FILES=70).shell(LIMITS).stdout == b"70\n"
    assert configured(limited, LIMITS_OPEN_FILES=500).shell(LIMITS).stdout == b"88\n"


def test_the_users_configuration_file_holds(wrap: Wrap) -> None:
    file = Path(wrap.env["HOME"], ".config", "casemate", "config.yaml")
    file.parent.mkdir(parents=True)
    file.write_text("limits: {open_files: 66}\nfilesystem: {denyRead: [" + str(wrap.folder / "notes.txt") + "]}\n")
    file.chmod(0o600)
    done = wrap.shell(f"{LIMITS}; cat notes.txt")
    assert (done.stdout, b"Permission denied" in done.stderr) == (b"66\n", True)


@pytest.mark.parametrize("name", ["TIMEOUT", "LIMITS_WALL"])
def test_the_time_that_is_configured_ends_it(wrap: Wrap, name: str) -> None:
    done = configured(wrap, **{name: "1"}).shell("echo begun; sleep 600")
    assert (done.stdout, done.returncode) == (b"begun\n", 124)


def test_a_time_that_is_given_is_longer_than_limits_that_nobody_gave(wrap: Wrap) -> None:
    assert wrap.shell("echo ran", "--timeout", "3000").stdout == b"ran\n"
    ended = configured(wrap, LIMITS_WALL="1").shell("sleep 600", "--timeout", "3000")
    assert ended.returncode == 124


def test_its_record_and_its_namespace_are_those_that_are_configured(wrap: Wrap, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    assert configured(wrap, AUDIT=path, NAMESPACE="team").shell("true").returncode == 0
    log = AuditLog(path)
    try:
        assert {row.namespace for row in log.tail(10) if row.kind in ("intent", "outcome")} == {"team"}
    finally:
        log.close()


@pytest.mark.parametrize(("variables", "told"), [
    ({"ISOLATION": "nonsense"}, "isolation: 'nonsense' is not known"),
    ({"LIMITS_MEMORY": "much"}, "CASEMATE_LIMITS_MEMORY: 'much' is not a size"),
    ({"TIMEOUT": "soon"}, "CASEMATE_TIMEOUT: 'soon' must be a number"),
    ({"POLICY": "/no/such.yaml"}, "CASEMATE_POLICY: cannot read"),
    ({"AUDIT": "memory"}, "CASEMATE_AUDIT: 'memory'"),
    ({"NAMESPACE": "n" * 1000}, "namespace"),
    ({"LIMITS_MEMROY": "1GiB"}, "CASEMATE_LIMITS_MEMROY: is not a known variable"),
    ({"WORKSPACE_MODE": "review"}, "'review' is not known here"),
])  # fmt: skip
def test_what_is_configured_wrongly_or_cannot_be_kept_is_refused(
    wrap: Wrap, variables: dict[str, str], told: str
) -> None:
    done = configured(wrap, **variables).shell("echo ran >ran")
    assert (done.returncode, told in done.stderr.decode(), (wrap.folder / "ran").exists()) == (2, True, False), (
        done.stderr.decode()
    )


def test_a_port_that_is_configured_is_there_and_none_where_the_list_is_empty(wrap: Wrap) -> None:
    file = policy(wrap, allow_local=[9])
    look = "getent hosts host.casemate.internal"
    assert configured(wrap, POLICY=file).shell(look).returncode == 0
    assert configured(wrap, POLICY=file, ALLOW_LOCAL="").shell(look).returncode != 0


def test_a_secret_that_a_rule_denies_is_not_given(wrap: Wrap) -> None:
    given = replace(wrap, env={**wrap.env, "CASEMATE_SECRET_DEFAULT_KEY": "a-secret-value"})
    assert given.shell("echo $KEY", "--secret", "KEY").stdout == b"[secret:KEY]\n"
    denied = configured(given, POLICY=policy(wrap, rules=[{"deny": "secret"}]))
    done = denied.shell("echo ran >ran", "--secret", "KEY")
    assert done.returncode != 0
    assert b"give programs the secret KEY: denied by policy.json:1" in done.stderr
    assert not (wrap.folder / "ran").exists()


def test_a_rule_that_binds_steps_alone_is_told_at_the_start(wrap: Wrap) -> None:
    done = wrap.shell("echo ran", "--policy", str(policy(wrap, defaults={"shell": "deny"})))
    assert done.stdout == b"ran\n"
    assert b"deny: shell: applies only to steps of Python and Shell sessions" in done.stderr
