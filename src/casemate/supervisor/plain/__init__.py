"""Cells without namespaces and mounts: folders on the disk, Landlock, a narrower seccomp filter, and an init for each.

`main` is the supervisor's entry for these, and `maker` what it makes cells with. What every cell has at the same path
elsewhere is a folder of its own here (`places`, `files`). `init` is the first process of a cell and ends all of it.
"""
