"""Cells in containers of an engine: Docker, and gVisor as its runtime.

`wall` is what the sandbox uses. `bridge` acts as the supervisor for the native wall's link and passes messages to
`casemate.supervisor.contained` in each cell's container. `engine` talks to the engine.
"""
