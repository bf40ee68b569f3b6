"""Trees that a program left behind: names, bounded walks without links, and writing beneath a folder.

What is handed out is decided in ``artifacts``, and what is written back in ``workspace``. Linux only, standard library
only. Everything read from a tree is hostile input.
"""
