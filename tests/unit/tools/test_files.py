"""Files of definitions: read strictly, changed as a whole."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from casemate import InvalidArgument, Unavailable
from casemate.tools.files import add_to_file, choose_servers, definitions_of, read_file, remove_from_file, users_file

ONE = {"command": "x"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}, "/c/casemate/servers.json"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/casemate/servers.json"),
    ],
)
def test_the_users_own_file_is_where_configuration_is(environ: dict[str, str], place: str) -> None:
    assert str(users_file(environ)) == place


def test_without_a_home_there_is_no_file_of_the_users() -> None:
    with pytest.raises(Unavailable, match="HOME"):
        users_file({})


@pytest.mark.parametrize("given", [{"a": ONE}, {"mcpServers": {"a": ONE}}])
def test_definitions_are_a_mapping_of_names_or_as_in_a_file(given: dict[str, object], tmp_path: Path) -> None:
    assert definitions_of(given) == {"a": ONE}
    (tmp_path / "s.json").write_text(json.dumps({"mcpServers": {"a": ONE}}))
    assert definitions_of(tmp_path / "s.json") == {"a": ONE}


@pytest.mark.parametrize(
    "given", [7, [], {"a": 1}, {"a b": ONE}, {"mcpServers": {}, "more": 1}, {"a": {"commnad": "x"}}]
)
def test_what_is_no_definition_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument):
        definitions_of(given)


def test_a_file_that_is_not_there_has_no_servers_but_cannot_be_named(tmp_path: Path) -> None:
    assert read_file(tmp_path / "none.json") == {}
    with pytest.raises(InvalidArgument, match="does not exist"):
        definitions_of(tmp_path / "none.json")
    with pytest.raises(InvalidArgument, match="no server 'a'"):
        choose_servers(tmp_path / "none.json", ("a",))


@pytest.mark.parametrize(
    "text", ['{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "{", "[]", "NaN", '{"mcpServers": 1}']
)
def test_a_file_that_readers_could_disagree_about_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"s\.json"):
        read_file(tmp_path / "s.json")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.json")
    with pytest.raises(InvalidArgument, match="not a regular file"):
        read_file(tmp_path / "s.json")


def test_no_change_is_lost_when_several_are_made_at_once(tmp_path: Path) -> None:
    place = tmp_path / "new" / "servers.json"
    threads = [threading.Thread(target=add_to_file, args=(place, f"s{n}", ONE)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_file(place)) == sorted(f"s{n}" for n in range(20))
    assert [path.name for path in place.parent.iterdir()] == ["servers.json"]


def test_what_a_link_leads_to_is_changed_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "s.json")
    add_to_file(tmp_path / "link.json", "a", ONE)
    remove_from_file(tmp_path / "link.json", "a")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real" / "s.json").read_text()) == {"mcpServers": {}}
