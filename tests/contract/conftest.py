"""Every wall and every language, each test once for all of them: a wall that is listed is judged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.languages import LANGUAGES
from tests.support.walls import judge, skip_without, walls_of
from tests.warmth import start

from casemate import sync

__all__ = ["start"]

_PATHS = "without mounts /workspace and /program are folders of other names"
_COUNTED = "processes are counted now and then"
_DISK = "files are counted now and then"
_COVERED = "without mounts nothing is covered, and no folder written through"
# docs/explanation/walls.md has what this wall does not contain.
WEAKER: dict[str, dict[str, str]] = {
    "docker": {
        "test_everything_that_is_writable_shares_one_disk_limit": "each writable folder has the limit of its own",
    },
    "landlock": {
        "test_every_file_made_or_changed_comes_back_and_given_ones_that_stayed_do_not": _PATHS,
        "test_a_program_starts_in_the_workspace": _PATHS,
        "test_the_environment_is_the_documented_one_and_nothing_of_the_hosts": _PATHS,
        "test_a_traceback_shows_the_lines_and_the_file_name_of_the_program": _PATHS,
        "test_a_run_sees_nothing_of_the_run_before": _PATHS,
        "test_a_file_that_is_too_large_is_named_and_does_not_make_the_output_truncated": _DISK,
        "test_a_limit_that_is_met_is_named_and_what_there_was_is_kept disk": _DISK,
        "test_a_limit_that_is_met_is_named_and_what_there_was_is_kept disk, Shell": _DISK,
        "test_a_limit_that_is_met_is_named_and_what_there_was_is_kept inodes": _DISK,
        "test_a_program_that_copes_with_a_limit_has_no_cause": _DISK,
        "test_everything_that_is_writable_shares_one_disk_limit": _DISK,
        "test_va_15_a_program_has_a_placeholder_and_never_the_secret shell": "a child does not read its own /proc/self",
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
    },
}
# What is left out, and why: mostly it comes out now one way, now the other.
UNDECIDED: dict[str, dict[str, str]] = {
    "docker": {
        **dict.fromkeys(
            ("test_a_shown_plot_is_a_picture_that_can_be_saved", "test_a_table_is_shown_as_text_and_html"),
            "the tests' image has no pandas and no matplotlib",
        ),
        **dict.fromkeys(
            (
                "test_text_has_both_streams_in_the_order_in_which_they_came",
                "test_full_output_holds_both_streams_to_the_last_byte",
                "test_what_is_displayed_is_an_event_between_the_texts",
                "test_a_reader_that_does_not_read_holds_the_program_up_but_not_its_deadline",
            ),
            "all that a cell says comes in pieces over one stream",
        ),
        "test_a_limit_of_processes_that_is_met_is_named processes, threads of a program that exits at a refusal": (
            _COUNTED
        ),
    },
    "landlock": {"test_a_limit_of_processes_that_is_met_is_named": _COUNTED},
}
if os.geteuid():
    WEAKER["landlock"] |= {
        "test_a_fork_bomb_is_bounded_and_ended": _COUNTED,
        "test_nothing_lives_after_a_timeout a storm of forks": _COUNTED,
    }
    UNDECIDED["landlock"]["test_nothing_lives_after_a_timeout children that fork as they end"] = _COUNTED
    UNDECIDED["docker"] |= dict.fromkeys(
        (
            "test_nothing_lives_after_a_timeout",
            "test_nothing_lives_after_another_limit",
            "test_nothing_lives_after_the_program_has_ended_by_itself",
        ),
        "an ordinary user cannot look into containers: ./test --all as root does",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a wall does not contain is expected to fail behind it."""
    judge(items, Path(__file__).parent, WEAKER, UNDECIDED)


@pytest.hookimpl(trylast=True)  # else the order of a test's ids depends on what else is collected
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a wall behind each."""
    if "wall" in metafunc.fixturenames:
        metafunc.parametrize("wall", walls_of(metafunc.config), indirect=True, scope="session")


@pytest.fixture(scope="session")
def wall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the wall that is judged."""
    skip_without(str(request.param), tmp_path_factory)
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
