"""What runs inside the wall, beside the user's program. Stdlib only; no other part of casemate imports it.

Nothing here is trusted by the host, and nothing here protects anything: the walls do that. It only
makes a program's pictures, tables and errors reach the control pipe, and stays out of its way.
"""
