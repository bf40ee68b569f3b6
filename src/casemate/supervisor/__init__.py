"""The supervisor: the only process that sees the host's files and makes cells.

It is started by exec with the standard library alone, holds no secret, and is pid 1 of a
process namespace, so that its end is the end of every cell. It takes launch requests from
one socket (`wire`), prepares what a cell may see (`roots`, `broker`), makes the cell
(`cell`, `init`), watches it (`deadlines`, `watch`, `cgroups`) and says how it ended.
Nothing here imports the rest of casemate; of the rest only `casemate.walls` imports
`wire`.
"""
