"""The landlock wall: cells without namespaces, for machines and containers that forbid them.

Its host side is the native wall's (`casemate.walls.native`); the supervisor makes cells differently
(`casemate.supervisor.plain`). ``docs/explanation/walls.md`` lists what this wall does not contain.
"""
