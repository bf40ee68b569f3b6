"""One cell in its own container: the container is the wall, and the host is at the other end of a stream.

`main` is the container's first process, `maker` makes the cell, `host` talks to the host. The stream's protocol is in
`casemate.supervisor.carriage`, changes of files in `casemate.supervisor.trees.records`.
"""
