"""The supervisor: the only process that sees the host's files and makes cells.

The host starts it by exec with the standard library alone. It holds no secret. It is pid 1 of a process namespace, so
every cell ends with it. It takes requests from one socket (`wire`, `serve`), prepares what a cell may see (`roots`,
`scratch`, `folders`), makes the cell (`pool`, `zygotes`, and `init` inside it), holds it to its limits (`cells`,
`watch`, `cgroups`) and reports how it ended. Nothing here imports the rest of casemate; of the rest, only
`casemate.walls` imports `wire`.
"""
