"""Where packages come from: as the operator's pip reports it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from casemate.errors import InvalidArgument, Unavailable
from casemate.packages import indexes
from casemate.packages.indexes import PYPI, Index, files_of_pip, index, read_pip_indexes, settings_in
from casemate.packages.local import links_in


def env(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull, **more}


def test_without_any_setting_it_is_pypi(tmp_path: Path) -> None:
    assert read_pip_indexes(env(tmp_path)).indexes == (Index(PYPI),)


def test_a_variable_of_the_operators_is_followed_and_its_password_is_taken_apart(tmp_path: Path) -> None:
    found = read_pip_indexes(
        env(tmp_path, PIP_INDEX_URL="https://me:s%40cret@index.test:8443/root/simple", PIP_CERT="/c.pem")
    )
    assert found.indexes == (Index("https://index.test:8443/root/simple/", "me", "s@cret"),)
    assert found.cert == "/c.pem"
    assert "cret" not in repr(found)


@pytest.mark.parametrize("more", [{}, {"XDG_CONFIG_HOME": "{}/own"}, {"XDG_CONFIG_DIRS": "{0}/first:{0}/second"}])
def test_pip_itself_looks_for_its_configuration_nowhere_else(tmp_path: Path, more: dict[str, str]) -> None:
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    given |= {name: value.format(tmp_path) for name, value in more.items()}
    command = [sys.executable, "-P", "-m", "pip", "config", "debug"]
    told = subprocess.run(command, cwd="/", env=given, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.findall(r"^  (/.*), exists: ", told, re.MULTILINE)
    assert len(found) >= 4, "it told its places"
    assert set(found) <= set(files_of_pip(given))


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("HOME", ".pip/pip.conf"),
        ("HOME", ".config/pip/pip.conf"),
        ("XDG_CONFIG_HOME", "pip/pip.conf"),
        ("XDG_CONFIG_DIRS", "pip/pip.conf"),
    ],
)
def test_a_file_of_the_operators_is_followed_wherever_it_lies(tmp_path: Path, variable: str, place: str) -> None:
    for name in ("home", "folder"):
        (tmp_path / name).mkdir()
    file = tmp_path / "folder" / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[install]\nindex-url = https://index.test/simple\nextra-index-url =\nfind-links =\n")
    found = read_pip_indexes(
        {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), variable: str(tmp_path / "folder")}
    )
    assert found.indexes == (Index("https://index.test/simple/"),)


def test_the_operators_other_places_come_before_the_index_and_each_is_judged_by_itself(tmp_path: Path) -> None:
    wheels, simple = tmp_path / "wheels", tmp_path / "simple"
    wheels.mkdir()
    (simple / "acme").mkdir(parents=True)
    extra = f"https://me:pw@extra.test/simple file://{simple} file:///nowhere/at/all ftp://no.test/"
    found = read_pip_indexes(env(tmp_path, PIP_FIND_LINKS=f"{wheels} /nowhere/else", PIP_EXTRA_INDEX_URL=extra))
    assert [(one.url, one.is_flat) for one in found.indexes] == [
        (f"file://{wheels}/", True), ("https://extra.test/simple/", False), (f"file://{simple}/", False), (PYPI, False),
    ]  # fmt: skip
    alone = read_pip_indexes(env(tmp_path, PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1"))
    assert [one.folder for one in alone.indexes] == [str(wheels)]
    with pytest.raises(Unavailable):
        read_pip_indexes(env(tmp_path, PIP_NO_INDEX="1"))


def test_a_folder_has_the_files_of_a_project_and_no_others(tmp_path: Path) -> None:
    names = ["my_pkg-1.0-py3-none-any.whl", "my-pkg-1.1.tar.gz", "my_pkg_extra-1.0-py3-none-any.whl", "notes.txt"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    assert [link.filename for link in links_in(str(tmp_path), "my-pkg", is_flat=True) or ()] == [
        "my-pkg-1.1.tar.gz",
        names[0],
    ]
    assert links_in(str(tmp_path), "other", is_flat=True) is None
    assert links_in(str(tmp_path), "other", is_flat=False) is None


def test_where_nothing_is_set_pip_is_not_even_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    monkeypatch.setattr(indexes, "files_of_pip", lambda _: [str(tmp_path / "pip.conf")])
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    assert read_pip_indexes(plain).indexes == (Index(PYPI),)
    (tmp_path / "pip.conf").symlink_to("nowhere")
    with pytest.raises(Unavailable):
        read_pip_indexes(plain)


def test_a_folder_in_which_the_process_happens_to_be_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://evil.test/simple\n")
    (tmp_path / "pip.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    assert read_pip_indexes(env(tmp_path)).indexes == (Index(PYPI),)


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
