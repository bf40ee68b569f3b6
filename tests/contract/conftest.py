"""Every wall and every language, each test once for all of them: add a name here and the suite judges it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.engine import skip_without_engine
from tests.support.languages import LANGUAGES
from tests.warmth import start

from casemate import WallUnavailable, sync

__all__ = ["start"]

WALLS = ("native", *(pytest.param(name, marks=pytest.mark.full) for name in ("landlock", "docker")))
_PATHS = "without mounts /workspace and /program are folders of other names"
_WITNESS = "the witness knows a cell by its namespaces"
_DISK = "files are counted now and then"
_COVERED = "without mounts nothing is covered, and no folder written through"
# docs/explanation/walls.md has what this wall does not contain. Not in every language, or every way to start.
NOT_BEHIND_LANDLOCK = {
    "test_every_file_made_or_changed_comes_back_and_given_ones_that_stayed_do_not": _PATHS,
    "test_a_program_starts_in_the_workspace": _PATHS,
    "test_the_environment_is_the_documented_one_and_nothing_of_the_hosts": _PATHS,
    "test_a_traceback_shows_the_lines_and_the_file_name_of_the_program": _PATHS,
    "test_a_run_sees_nothing_of_the_run_before": _PATHS,
    "test_a_file_that_is_too_large_is_named_and_does_not_make_the_output_truncated": _DISK,
    "test_a_limit_that_is_met_is_named_and_what_there_was_is_kept": _DISK,
    "test_a_program_that_copes_with_a_limit_has_no_cause": _DISK,
    "test_everything_that_is_writable_shares_one_disk_limit": _DISK,
    "test_nothing_lives_after_a_timeout": _WITNESS,
    "test_nothing_lives_after_another_limit": _WITNESS,
    "test_the_host_answers_on_a_listener_inside_the_cell": _WITNESS,
    "test_the_host_listens_again_where_connections_of_an_earlier_listener_go_on": _WITNESS,
    "test_va_11_a_later_cell_inherits_nothing_of_what_a_run_was_given": _WITNESS,
    "test_va_11_the_supervisor_has_nothing_of_what_a_run_was_given": _WITNESS,
    "test_va_15_a_program_has_a_placeholder_and_never_the_secret": "a child does not read its own /proc/self",
    "test_a_reader_that_does_not_read_holds_the_program_up_but_not_its_deadline": _PATHS,
    "test_a_cell_that_was_ready_hides_a_file_that_was_replaced_since": _COVERED,
    "test_a_file_in_the_output_folder_is_no_artifact_though_somebody_changes_it": _COVERED,
    "test_a_file_that_is_named_as_to_be_seen_can_be_read_and_changed": _COVERED,
    "test_a_file_that_vanishes_while_a_run_is_prepared_is_an_error_in_words": _COVERED,
    "test_a_folder_that_may_not_be_listed_hides_nothing_from_the_search": _COVERED,
    "test_a_plan_and_a_run_in_the_background_do_not_see_it_either": _COVERED,
    "test_a_program_ends_when_what_is_hidden_from_it_is_replaced_in_a_folder_that_is_written_through": _COVERED,
    "test_a_program_that_opens_a_hidden_file_gets_a_plain_error": _COVERED,
    "test_marks_like_those_of_the_layer_remove_nothing_and_show_nothing": _COVERED,
    "test_no_way_of_any_language_reads_changes_moves_removes_or_replaces_it": _COVERED,
    "test_what_a_policy_hides_is_hidden_from_programs_too": _COVERED,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one wall does not contain is expected to fail there."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        reason = NOT_BEHIND_LANDLOCK.get(getattr(item, "originalname", ""), "")
        if reason and callspec is not None and callspec.params.get("wall") == "landlock":
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))


@pytest.fixture(scope="session", params=WALLS)
def wall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the wall that is judged."""
    if request.param == "landlock":
        try:
            with sync.Sandbox(isolation="landlock", audit=_audit(tmp_path_factory)) as one:
                one.run("pass")
        except WallUnavailable as error:
            pytest.skip(str(error))
    if request.param == "docker":
        skip_without_engine()
    return str(request.param)


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """The name of the language that is judged."""
    return str(request.param)


@pytest.fixture(scope="module")
def sandbox(wall: str, start: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    """One sandbox for all tests of a file: that they do not disturb each other is part of the contract."""
    with sync.Sandbox(isolation=wall, audit=_audit(tmp_path_factory)) as one:
        yield one


def _audit(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("audit") / "audit.db"
