"""The native wall: namespaces, mounts, Landlock, seccomp and limits, without root and without other programs.

`launch` turns a plan into a request, `link` talks to the supervisor, `running` holds the cells behind
it, `pool` keeps cells ready, `selftest` proves the result, `refusal` explains a machine that says no, and `wall` puts
them together.
"""
