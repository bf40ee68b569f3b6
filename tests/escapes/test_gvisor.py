"""The docker wall with gVisor's kernel: the attacks that the host can judge without looking at processes, which are
gVisor's own and not the machine's."""

from __future__ import annotations

import os

import pytest
from tests.escapes.test_frames import (  # noqa: F401
    test_a_broken_frame_is_dropped_and_the_run_ends_as_it_did,
    test_a_forged_frame_changes_nothing_that_the_host_knows,
    test_the_report_of_a_programs_end_cannot_be_forged,
    test_what_a_run_leaves_behind_is_not_in_the_next,
)
from tests.escapes.test_kernel import (  # noqa: F401
    test_a_file_handle_opens_nothing_of_the_host,
    test_the_systems_own_programs_make_no_namespace_either,
)
from tests.escapes.test_network import (  # noqa: F401
    test_a_static_program_reaches_nothing_either,
    test_no_listener_of_the_host_is_reached,
    test_sockets_and_fifos_in_a_callers_folder_lead_nowhere,
)
from tests.escapes.test_process import (  # noqa: F401
    test_a_process_of_the_host_is_not_touched,
    test_a_program_that_ignores_every_signal_is_dead_after_its_time,
    test_daemons_die_with_the_run_and_do_not_delay_it,
)
from tests.escapes.test_read import (  # noqa: F401
    inherited,
    test_another_cells_files_sockets_and_environment_stay_unread,
    test_control_inside_one_cell_the_same_search_finds_them,
    test_hidden_files_of_a_callers_folder_stay_unread,
    test_secrets_of_the_host_stay_unread,
    test_the_disk_stays_unread_as_a_device,
    test_the_record_and_the_state_of_casemate_stay_unread,
    test_the_users_of_this_machine_stay_unread,
    test_what_a_dead_cell_left_anywhere_is_not_found_by_the_next,
    test_what_proc_tells_of_the_kernel_is_hidden,
)
from tests.escapes.test_resources import (  # noqa: F401
    test_cpu_time_over_many_processes_is_bounded,
    test_memory_of_every_kind_is_bounded,
    test_the_disk_is_bounded,
    test_the_number_of_files_is_bounded,
    test_what_never_ends_is_ended,
)
from tests.escapes.test_write import (  # noqa: F401
    environment,
    inside,
    test_links_out_of_the_workspace_are_neither_followed_nor_written,
    test_nothing_is_left_in_a_project_that_somebody_runs_later,
    test_nothing_of_the_host_is_changed,
)

from casemate import sync

WALLS = (pytest.param("gvisor", marks=pytest.mark.full),)
STARTS = ("exec",)


def test_the_kernel_is_a_cells_own(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("import os; print(os.uname().release)")
    assert execution.isolation.kernel_boundary == "user-space"
    assert execution.text != os.uname().release
