"""The landlock wall: cells without namespaces, for machines and containers that forbid them.

It shares the host side of the native wall (`casemate.walls.native`). The supervisor makes its cells differently
(`casemate.supervisor.plain`). ``docs/explanation/walls.md`` lists what this wall does not contain.
"""
