"""Cells out of containers, which an engine holds: Docker, and gVisor by its runtime.

From above: `wall` is what the sandbox sees, `bridge` the supervisor that it believes to talk to, which carries
everything to `casemate.supervisor.contained` in the container of each cell. `engine` speaks with the engine.
"""
