"""The one way in and out of a folder that a cell could have written to: every call takes a descriptor and one name.

No link is followed, and what is used is what was looked at. The supervisor, the host and the supervisor in a container
share this package; it needs the standard library alone.
"""
