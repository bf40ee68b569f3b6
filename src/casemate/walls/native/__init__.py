"""The native wall: namespaces, mounts, Landlock, seccomp and limits, without root or helper programs.

`launch` turns a plan into a request. `link` talks to the supervisor. `running` has its cells. `pool` keeps cells ready.
`selftest` proves the wall. `refusal` explains why a machine cannot have it. `wall` combines them.
"""
