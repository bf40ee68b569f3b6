"""Code that runs inside the wall beside the user's program. Stdlib only; no other part of casemate imports it.

The host trusts nothing here, and nothing here protects anything: the walls do. It only passes a program's pictures,
tables and errors to the control pipe.
"""
