"""Cells without namespaces and mounts: folders on disk, Landlock, a narrower seccomp filter, and an init for each cell.

`main` is the supervisor's entry point, and `maker` makes the cells. Places such as /workspace, which other walls mount
at that path, are folders of each cell here (`places`, `files`). `init` is a cell's first process and ends it.
"""
