"""Where packages come from: as the operator's pip reports it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casemate.errors import InvalidArgument, Unavailable
from casemate.packages.indexes import PYPI, Index, index, operators, settings_in


def env(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull, **more}


def test_without_any_setting_it_is_pypi(tmp_path: Path) -> None:
    assert operators(env(tmp_path)).indexes == (Index(PYPI),)


def test_a_variable_of_the_operators_is_followed_and_its_password_is_taken_apart(tmp_path: Path) -> None:
    found = operators(env(tmp_path, PIP_INDEX_URL="https://me:s%40cret@index.test:8443/root/simple", PIP_CERT="/c.pem"))
    assert found.indexes == (Index("https://index.test:8443/root/simple/", "me", "s@cret"),)
    assert found.cert == "/c.pem"
    assert "cret" not in repr(found)


def test_a_folder_in_which_the_process_happens_to_be_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://evil.test/simple\n")
    (tmp_path / "pip.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    assert operators(env(tmp_path)).indexes == (Index(PYPI),)


@pytest.mark.parametrize("name", ["PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"])
def test_more_places_than_one_are_refused_with_advice(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unavailable):
        operators(env(tmp_path, **{name: "1"}))


def test_of_a_setting_in_several_sections_the_one_for_install_and_then_the_variable_wins() -> None:
    listing = ":env:.cert='c'\nglobal.cert='a'\nglobal.index-url='https://a.test'\ninstall.index-url='https://b.test'\nnonsense\n"
    assert settings_in(listing) == {"cert": "c", "index-url": "https://b.test"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "file:///x",
        "ftp://x/",
        "https://",
        "https://x/?a=b",
        "https://x/#a",
        "https://[x",
        "https://x:y/",
        3,
        None,
    ],
)
def test_what_is_no_address_of_an_index_is_refused(url: object) -> None:
    with pytest.raises(InvalidArgument):
        index(url)
