"""The supervisor: the only process that sees the host's files and makes cells.

It is started by exec with the standard library alone, holds no secret, and is pid 1 of a process namespace, so that its
end is the end of every cell. It takes requests from one socket (`wire`, `serve`) and prepares what a cell may see
(`roots`, `scratch`, `folders`). It makes the cell (`pool`, `zygotes`, and `init` inside it), holds it to its limits
(`cells`, `watch`, `cgroups`) and says how it ended. Nothing here imports the rest of casemate; of the rest only
`casemate.walls` imports `wire`.
"""
