"""The policy that the documents show is the example's, and does what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.policy.asked import effect, question

from casemate.api.policy_options import policy_from
from casemate.policy.rules import Rulebook

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "policy.yaml"


def test_the_document_shows_the_example_that_is_read() -> None:
    assert f"```yaml\n{EXAMPLE.read_text()}```\n" in (ROOT / "docs" / "how-to" / "policy.md").read_text()


@pytest.mark.parametrize(("asked", "expected"), [
    (question(server="files", tool="read_file", path="/srv/project/a/b"), "allow"),
    (question(server="files", tool="read_file", path="/srv/project/../x"), "ask"),
    (question(server="files", tool="write_file", path="/srv/project/a"), "ask"),
    (question(server="issues", tool="search", text="x"), "allow"),
    (question(server="issues", tool="delete_project", id=1), "deny"),
    (question("package", language="python", packages=["numpy"]), "allow"),
    (question("package", language="python", packages=["left"]), "deny"),
    (question("host", argv=["wc", "-l", "a.txt"]), "allow"), (question("host", argv=["wc", "-l", "--x"]), "ask"),
    (question("shell", command="ls"), "ask"), (question("egress", host="other.test", port=443), "ask")])  # fmt: skip
def test_the_example_decides_as_its_comments_say(asked: object, expected: str) -> None:
    rules = Rulebook(policy_from(EXAMPLE).rules, 0, lambda: 0)
    assert effect(rules.verdict(asked, 0)) == expected  # type: ignore[arg-type]


def test_the_examples_hosts() -> None:
    hosts = policy_from(EXAMPLE).hosts
    asked = [("pypi.org", 443), ("files.pythonhosted.org", 443), ("db.example.org", 5432),
    ("uploads.pythonhosted.org", 443),
             ("pypi.org", 22), ("db.example.org", 443)]  # fmt: skip
    assert [hosts.allows(*one) for one in asked] == [True, True, True, False, False, False]
