"""Trees that a program left behind: names, bounded walks without links, and writing beneath a folder.

What is not here: any decision about what is handed out (``artifacts``) or written back (``workspace``).
Linux only, standard library only. Everything read from a tree is hostile input.
"""
