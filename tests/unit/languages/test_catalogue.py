"""The languages that there are, and the shell, the simplest of them."""

from __future__ import annotations

import subprocess

import pytest

from casemate.errors import InvalidArgument
from casemate.languages.catalogue import LANGUAGE_NAMES, language_of, runtime_for, runtimes
from casemate.languages.runtime import Runtime
from casemate.languages.shell.runtime import ShellRuntime


@pytest.mark.parametrize("name", LANGUAGE_NAMES)
def test_a_language_is_found_by_its_names_in_any_case(name: str) -> None:
    assert runtime_for(name) is runtime_for(name.upper())
    assert runtime_for(runtime_for(name).language) is runtime_for(name)


@pytest.mark.parametrize("runtime", [*runtimes()], ids=lambda runtime: runtime.language)
def test_a_programs_ending_tells_its_language(runtime: Runtime) -> None:
    assert language_of(runtime.default_name) == runtime.language
    for ending in runtime.extensions:
        assert language_of(f"folder.x/a{ending.upper()}") == runtime.language


def test_no_name_and_no_ending_means_two_languages() -> None:
    names = [*LANGUAGE_NAMES, *(ending for runtime in runtimes() for ending in runtime.extensions)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["ruby", "", "python4", 3])
def test_an_unknown_language_is_refused_naming_those_that_there_are(name: str) -> None:
    with pytest.raises(InvalidArgument, match="'python', 'node', 'shell'") as caught:
        runtime_for(name)
    assert caught.value.argument == "language"


@pytest.mark.parametrize("name", ["a", "a.txt", ".py", "Makefile", ""])
def test_a_name_that_tells_nothing_has_no_language(name: str) -> None:
    assert language_of(name) is None


def test_a_shell_program_is_started_by_its_absolute_path_without_a_hook() -> None:
    planned = ShellRuntime().launch(None, "main.sh", ("a b",))
    assert planned.argv[0].startswith("/")
    assert planned.argv[1:] == ("/program/main.sh", "a b")
    assert not ShellRuntime.reports


def test_the_shells_version_is_what_it_says_of_itself() -> None:
    found = ShellRuntime().find_installation()
    if not found.path.endswith("bash"):
        pytest.skip("no bash here: apt-get install bash")
    told = subprocess.run([found.path, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"version {found.version}(" in told
