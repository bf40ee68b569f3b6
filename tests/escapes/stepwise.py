"""Runs that are steps of sessions: each program is the first step of a session of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

from casemate.execution import pipeline
from casemate.execution.capture import Emitter
from casemate.execution.context import ExecutionContext
from casemate.languages.catalogue import runtime_for
from casemate.model.execution import Execution
from casemate.model.plan import Request
from casemate.sessions.session import Session
from casemate.sessions.terms import SessionTerms

# Attacks that mean the same as a step: they need no end of a program of their own, and no layer to be left out.
MEANT = {
    "test_a_broken_frame_is_dropped_and_the_run_ends_as_it_did",
    "test_a_cell_cannot_hold_the_hosts_locks",
    "test_a_cell_that_floods_the_control_pipe_is_ended",
    "test_a_crash_leaves_no_core_file",
    "test_a_file_handle_opens_nothing_of_the_host",
    "test_a_forged_frame_changes_nothing_that_the_host_knows",
    "test_a_fork_that_returns_twice_is_one_run",
    "test_a_held_pipe_and_a_hidden_descriptor_do_not_keep_a_run_alive",
    "test_a_process_of_the_host_is_not_touched",
    "test_a_program_that_ignores_every_signal_is_dead_after_its_time",
    "test_a_race_between_a_file_and_a_link_wins_nothing",
    "test_a_signal_to_the_cells_init_changes_nothing",
    "test_a_static_program_reaches_nothing_either",
    "test_another_cells_files_sockets_and_environment_stay_unread",
    "test_control_bare_a_lease_and_a_lock_are_taken",
    "test_control_bare_root_is_given_what_needs_a_capability",
    "test_control_bare_the_same_attack_changes_every_file",
    "test_control_bare_the_same_attack_overwrites_its_memory",
    "test_control_bare_the_same_attack_plants_all_of_it",
    "test_control_bare_the_same_attack_reaches_them",
    "test_control_bare_the_same_attack_reads_stops_and_kills_it",
    "test_control_bare_the_same_attack_reads_them_all",
    "test_control_bare_the_same_daemons_live_on",
    "test_control_without_the_masks_proc_tells_of_the_kernel",
    "test_control_inside_one_cell_the_same_search_finds_them",
    "test_cpu_time_of_orphans_is_bounded",
    "test_cpu_time_over_many_processes_is_bounded",
    "test_descriptors_in_flight_do_not_stop_other_runs",
    "test_landlock_alone_keeps_unread_what_a_wrong_mount_shows",
    "test_hidden_files_of_a_callers_folder_stay_unread",
    "test_links_out_of_the_workspace_are_neither_followed_nor_written",
    "test_memory_is_bounded_in_other_languages_too",
    "test_memory_of_every_kind_is_bounded",
    "test_no_other_address_is_reached",
    "test_no_setuid_file_is_left_even_where_a_folder_is_written_through",
    "test_node_and_shell_cannot_forge_an_end_either",
    "test_nothing_is_left_after_hostile_runs",
    "test_nothing_is_left_in_a_project_that_somebody_runs_later",
    "test_secrets_of_the_host_stay_unread",
    "test_shell_and_node_leave_no_setuid_file_either",
    "test_sockets_and_fifos_in_a_callers_folder_lead_nowhere",
    "test_terminal_sequences_in_output_are_data",
    "test_the_death_of_the_supervisor_is_the_death_of_its_cells",
    "test_the_disk_is_bounded",
    "test_the_hosts_memory_does_not_grow_with_what_a_cell_says",
    "test_the_network_namespace_alone_holds",
    "test_the_number_of_files_is_bounded",
    "test_the_operators_terminal_is_neither_written_nor_typed_into",
    "test_the_record_and_the_state_of_casemate_stay_unread",
    "test_the_report_of_a_programs_end_cannot_be_forged",
    "test_the_systems_own_programs_make_no_namespace_either",
    "test_the_write_back_alone_strips_setuid_bits",
    "test_trees_that_are_hard_to_read_or_delete_leave_nothing_behind",
    "test_what_a_dead_cell_left_anywhere_is_not_found_by_the_next",
    "test_what_a_run_leaves_behind_is_not_in_the_next",
    "test_what_never_ends_is_ended",
    "test_what_proc_tells_of_the_kernel_is_hidden",
    "test_without_any_one_layer_the_secrets_stay_unread",
}


@contextlib.contextmanager
def in_sessions() -> Iterator[None]:
    """Every run of a sandbox is a step meanwhile."""
    with mock.patch.object(pipeline, "execute", _execute):
        yield


async def _execute(request: Request, context: ExecutionContext, emitter: Emitter | None = None) -> Execution:
    first = replace(request, id=f"{request.id[:-1]}s", code=runtime_for(request.language).session.program)
    terms = SessionTerms(
        None, context.admit(first, stream=False), None, restore_cwd=False, idle_timeout=None, lifetime=None
    )
    session = Session(terms, context, lambda *_of: contextlib.nullcontext())
    try:
        step = replace(request, session=session.id, has_stdin=bool(request.stdin))
        return await session.steps.run(step, emitter, wait=True)
    finally:
        await session.close()
