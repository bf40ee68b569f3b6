"""Which functions may take a path where cells' files are handled: each with why no cell could have named what is there.

All else works on descriptors: one name at a time, beneath a folder that is open, and no link is followed
(``casemate.supervisor.trees``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src/casemate"
FOLDERS = ("walls", "supervisor", "workspace", "artifacts", "sessions/files.py", "files/archives.py")
OS = """
    open stat lstat listdir scandir mkdir makedirs rmdir unlink remove rename replace link symlink readlink chmod chown
    lchown utime mknod mkfifo truncate access walk fwalk getxattr setxattr listxattr removexattr chdir
"""
OS_PATH = "exists lexists isdir isfile islink realpath getsize getmtime samefile ismount"
PATHLIB = """
    exists is_dir is_file is_symlink read_text read_bytes write_text write_bytes lstat iterdir glob rglob touch resolve
    symlink_to hardlink_to mkdir unlink rmdir chmod rename open stat
"""
DESCRIPTORS = {"dir_fd", "src_dir_fd", "dst_dir_fd"}  # a call with one of these takes one name beneath a descriptor

ALLOWED = {
    "it is given a descriptor": """
        supervisor/trees/records.py:_make
        artifacts/content.py:_is_stream sessions/files.py:_list supervisor/trees/copies.py:_TreeCopier.copy_folder
        supervisor/trees/copies.py:_write_layout supervisor/trees/copies.py:_TreeCopier._finish
        supervisor/trees/copies.py:copy_file supervisor/trees/remove.py:_empty
        supervisor/trees/remove.py:_raise_folders supervisor/plain/packages.py:_link_folder
        supervisor/trees/walk.py:_TreeWalk._names
        workspace/apply.py:Writer.enter workspace/apply.py:Writer._remove_hidden
        workspace/upper.py:_mark
    """,
    "it opens again what a descriptor is, by /proc/self/fd": """
        supervisor/trees/walk.py:open_file supervisor/trees/walk.py:_unlock supervisor/scratch.py:Scratch.add_program
        supervisor/contained/host.py:StreamHost._descriptors walls/docker/cell.py:_own
        walls/native/descriptors.py:open_ways_in walls/native/launch.py:standard_input
    """,
    "it names files of the kernel's, in /proc, /sys and /dev": """
        supervisor/plain/connections.py:Loopback._guard supervisor/plain/connections.py:Loopback._look
        supervisor/watch.py:terminals
        supervisor/calls.py:_add_rule supervisor/cgroups.py:_enable supervisor/cgroups.py:_own_folder
        supervisor/cgroups.py:_remove_tree supervisor/cgroups.py:_remove_orphans supervisor/cgroups.py:_pid_namespace
        supervisor/cgroups.py:_read_path supervisor/contained/main.py:main supervisor/init.py:_report_prepared
        supervisor/init.py:_count_begun supervisor/kernel.py:last_capability supervisor/main.py:enter
        supervisor/namespaces.py:_map_of_root supervisor/namespaces.py:userns_with_map
        supervisor/namespaces.py:bound_inotify supervisor/init.py:_add_loopback_up supervisor/main.py:main
        supervisor/sockets.py:_count_netlink
        supervisor/plain/main.py:main supervisor/plain/maker.py:_open_files supervisor/plain/maker.py:_socket_inodes
        supervisor/plain/notified.py:NotifiedCall.is_own supervisor/plain/notified.py:NotifiedCall.read
        supervisor/plain/notified.py:NotifiedCall.socket_inode supervisor/plain/notify.py:NotifiedCalls._bind_unix
        supervisor/watch.py:_living_task supervisor/watch.py:children supervisor/watch.py:_children_by_parent
        supervisor/watch.py:has_no_children supervisor/watch.py:all_tasks_in supervisor/watch.py:run_time
        supervisor/watch.py:read supervisor/zygote.py:_has_threads supervisor/zygote.py:_data_bytes
        supervisor/zygote.py:_private_ranges walls/docker/containers.py:_boot walls/docker/containers.py:_lives
        walls/machine.py:_own_tasks walls/machine.py:read walls/native/in_use.py:_processes
        walls/native/refusal.py:facts walls/native/refusal.py:_text
        walls/native/selftest.py:_is_root walls/native/selftest.py:_victim workspace/listing.py:_local_devices
        workspace/listing.py:Listings._have_mounts_changed workspace/upper.py:marks_here walls/isolated_python.py:spawn
    """,
    "it names what casemate installs or the operator set up, before a cell is there": """
        supervisor/contained/host.py:StreamHost._take_folder walls/docker/mirrors.py:ShownFolder.changes
        supervisor/contained/main.py:_make_places supervisor/contained/main.py:_interpreters supervisor/init.py:
        supervisor/native_init.py:load supervisor/plain/maker.py:_reachable supervisor/plain/maker.py:PlainRoot.with_own
        supervisor/plain/packages.py:copy supervisor/plain/zygote.py:PlainZygote.find_path
        supervisor/roots.py:_bind supervisor/zygote.py:_compile_start supervisor/zygotes.py:_mount_rehearsal
        supervisor/zygotes.py:_mount_own_entry supervisor/folders.py:mount_copy walls/docker/engine.py:find
        walls/landlock/wall.py:_closed_folder walls/native/launch.py:system_entries walls/native/launch.py:identity
        walls/native/refusal.py:explain walls/native/selftest.py:_key walls/native/selftest.py:_read_cache
        walls/native/selftest.py:_write_cache walls/docker/bridge.py:Bridge._run
        walls/docker/containers.py:owner_mark walls/landlock/wall.py:LandlockWall._start_supervisor
    """,
    "it names the caller's folder itself, and compares it with what was checked": """
        walls/docker/mirrors.py:Mirror.copy_folder
        supervisor/folders.py:open_folder walls/native/launch.py:inode
    """,
    "a file or folder of the application's, which names it": """
        artifacts/content.py:Slice.save artifacts/content.py:_open_unlinked artifacts/export.py:export
        sessions/files.py:_unpack sessions/files.py:_upload sessions/files.py:_download sessions/files.py:_new
        sessions/files.py:_chunks_of walls/native/launch.py:_size walls/native/launch.py:_copy
    """,
    "the folder of a cell, in one that no cell can write to, or a folder there that the cell cannot rename": """
        walls/docker/mirrors.py:Mirror.__init__
        supervisor/contained/maker.py:ContainedScratch.__init__
        supervisor/contained/maker.py:ContainedScratch.open_steps
        supervisor/plain/files.py:CellFiles.__init__ supervisor/plain/files.py:create
        supervisor/plain/files.py:make_folders
        supervisor/trees/remove.py:remove_folder supervisor/trees/remove.py:remove_unused
        supervisor/plain/maker.py:PlainMaker.build_root supervisor/plain/maker.py:PlainMaker.start_zygote
        supervisor/plain/packages.py:show supervisor/plain/files.py:CellFiles.show_packages
        supervisor/scratch.py:Scratch.open_pipes
    """,
    "a file system that was just mounted, and that no cell has yet": """
        supervisor/folders.py:_mount_tree supervisor/folders.py:_overlay_workspace supervisor/folders.py:_make_upper
        supervisor/folders.py:make_folder supervisor/namespaces.py:Identity.chown supervisor/roots.py:build
        supervisor/roots.py:_add supervisor/roots.py:_mode supervisor/roots.py:_write supervisor/scratch.py:_attach
        supervisor/scratch.py:_make_contents supervisor/scratch.py:_copy_inputs supervisor/stage.py:prepare
        supervisor/stage.py:mount_in supervisor/zygotes.py:_own_root supervisor/kernel.py:pivot_root_here
        supervisor/plain/maker.py:_put_environment supervisor/contained/maker.py:ContainedScratch.fill
    """,
    "its folders were opened by `make_parents` without a link, and what the earlier cell left is dead": """
        supervisor/scratch.py:_reattach supervisor/scratch.py:_own_binds supervisor/scratch.py:_mount_file
        supervisor/roots.py:make_parents
    """,
    "it runs in the cell's own process, and can do no more than that": """
        supervisor/init.py:start_program supervisor/plain/init.py:_become_program
        supervisor/zygote.py:_ProgramStart.__init__
    """,
    "the path is a program's, is pinned, and must lie in what that cell can write before it is used": """
        supervisor/plain/notify.py:NotifiedCalls._change_file supervisor/plain/notify.py:NotifiedCalls._pin
    """,
    "it only looks, to decide what to hide, and treats a link as a link": """
        supervisor/folders.py:_cover_opened workspace/guarding.py:Guard.find_missing workspace/guarding.py:_mount
        workspace/guarding.py:Watched.add workspace/guarding.py:Watched.find_replaced
        workspace/guarding.py:_resolve_pattern workspace/guarding.py:_walk workspace/guarding.py:_list_all
        workspace/guarding.py:_hide_unlisted workspace/guarding.py:_behind
        workspace/guarding.py:_way workspace/guarding.py:Guard.find workspace/guarding.py:Guard.why_closed
        workspace/listing.py:Walk.list_folder workspace/listing.py:Walk._list
    """,
    "a folder of its own that was just made, with a name that nobody knows": """
        walls/native/selftest.py:_try_escapes walls/native/selftest.py:_run workspace/looking.py:_empty_folder
    """,
    "it is no path": """
        artifacts/export.py:_chunks sessions/files.py:SessionFiles.read_part sessions/files.py:SessionFiles.read_text
        supervisor/plain/maker.py:PlainMaker.open_listeners
    """,
}  # fmt: skip


def test_no_call_takes_a_path_that_a_cell_could_have_named() -> None:
    allowed = {name for names in ALLOWED.values() for name in names.split()}
    found = {function: line for path in sources() for function, line in path_calls(path)}
    assert {function: line for function, line in found.items() if function not in allowed} == {}
    assert sorted(allowed - {*found}) == []  # who needs no permission has none


def sources() -> Iterator[Path]:
    for name in FOLDERS:
        place = SOURCE / name
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def path_calls(path: Path) -> Iterator[tuple[str, int]]:
    """Where calls that take a path stand: in which function, and in which line."""
    waiting: list[tuple[ast.AST, str]] = [(ast.parse(path.read_text()), "")]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, ast.Call) and takes_a_path(node):
            yield f"{path.relative_to(SOURCE)}:{scope}", node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}".lstrip(".")
        waiting.extend((child, scope) for child in ast.iter_child_nodes(node))


def takes_a_path(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute) or DESCRIPTORS & {keyword.arg for keyword in call.keywords}:
        return False
    module = ast.unparse(function.value)
    if module in ("os", "os.path"):
        return function.attr in (OS if module == "os" else OS_PATH).split()
    return module == "shutil" or (function.attr in PATHLIB.split() and module != "entry")
