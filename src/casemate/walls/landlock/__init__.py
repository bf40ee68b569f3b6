"""The landlock wall: cells without namespaces, for machines and containers that forbid them.

The host's side is the native wall's (`casemate.walls.native`); the supervisor makes cells in another way
(`casemate.supervisor.plain`). ``docs/explanation/walls.md`` says what this wall does not contain.
"""
