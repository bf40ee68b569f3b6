"""Access to folders that a cell could have written to. Every call takes a descriptor and one name.

No link is followed, and the file that is used is the file that was checked. The supervisor, the host and the supervisor
in a container share this package, which needs only the standard library.
"""
