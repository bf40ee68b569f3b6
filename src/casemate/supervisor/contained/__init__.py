"""One cell in a container of its own: the container is the wall, and the host at the other end of a stream.

`main` is the first process of the container, `maker` what it makes its cell with, `host` whom it serves. What the
stream carries is in `casemate.supervisor.carriage`, what becomes of files in `casemate.supervisor.trees.records`.
"""
