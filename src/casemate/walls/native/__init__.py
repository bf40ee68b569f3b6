"""The native wall: namespaces, mounts, Landlock, seccomp and limits, without root and without other programs.

`tree` decides what a cell can read, `launch` turns a plan into a request, `link` talks to the
supervisor, `selftest` proves the result, `refusal` explains a machine that says no, and
`wall` puts them together.
"""
