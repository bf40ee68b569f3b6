"""Layers: one generation after the other, each complete, and what a cell reads never half of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casemate.packages.package_sets import PackageSet, projects


def install(package_set: PackageSet, name: str, version: str, *files: str) -> None:
    new = package_set.begin()
    info = new / "site" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    record = []
    for file in files:
        path = new / ("bin" if file.startswith("bin/") else "site") / file.removeprefix("bin/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} {version}")
        record.append(f"{'../../../' if file.startswith('bin/') else ''}{file},,\n")
    (info / "RECORD").write_text("".join(record))
    package_set.publish(new)


def files(package_set: PackageSet) -> dict[str, str]:
    root = package_set.folder / "current"
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "RECORD"
    }


def test_a_new_generation_has_what_the_old_one_had(tmp_path: Path) -> None:
    package_set = PackageSet(tmp_path / "layer")
    install(package_set, "alpha", "1", "alpha/__init__.py", "bin/alpha")
    before = package_set.current
    install(package_set, "beta", "1", "beta.py")
    assert files(package_set) == {"bin/alpha": "alpha 1", "site/alpha/__init__.py": "alpha 1", "site/beta.py": "beta 1"}
    assert before is not None
    assert [path.name for path in before.rglob("beta.py")] == []
    assert projects(package_set.folder / "current") == [("alpha", "1"), ("beta", "1")]


def test_files_of_a_version_that_is_replaced_go_with_it(tmp_path: Path) -> None:
    package_set = PackageSet(tmp_path / "layer")
    install(package_set, "alpha", "1", "alpha.py", "old.py", "bin/old")
    install(package_set, "alpha", "2", "alpha.py")
    assert files(package_set) == {"site/alpha.py": "alpha 2"}


def test_a_record_that_names_files_of_others_takes_nothing_outside_of_the_layer(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    package_set = PackageSet(tmp_path / "layer")
    install(package_set, "alpha", "1", "alpha.py")
    record = package_set.folder / "current" / "site" / "alpha-1.dist-info" / "RECORD"
    record.write_text(f'../../../../../../outside,,\n{tmp_path}/outside,,\n"unterminated\n')
    package_set.publish(package_set.begin(), {"alpha"})
    assert (tmp_path / "outside").read_text() == "mine"
    assert projects(package_set.folder / "current") == []


def test_another_layer_begins_with_a_copy(tmp_path: Path) -> None:
    shared, own = PackageSet(tmp_path / "shared"), PackageSet(tmp_path / "own")
    install(shared, "alpha", "1", "alpha.py")
    own.begin_with(shared)
    install(own, "beta", "1", "beta.py")
    assert set(files(own)) == {"site/alpha.py", "site/beta.py"}
    assert set(files(shared)) == {"site/alpha.py"}
    assert os.stat(shared.folder).st_mode & 0o777 == 0o755


@pytest.mark.parametrize("path", ["site", "site/alpha-1.0.dist-info"])
def test_a_file_where_a_folder_is_expected_is_no_project_that_stops_anything(tmp_path: Path, path: str) -> None:
    package_set = PackageSet(tmp_path / "layer")
    for _ in range(2):
        new = package_set.begin()
        (new / path).parent.mkdir(exist_ok=True)
        (new / path).write_text("")
        projects(new)
        package_set.publish(new)
    assert package_set.current == tmp_path / "layer" / "2"
