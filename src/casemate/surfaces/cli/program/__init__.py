"""``casemate run``: one program in a cell that this process makes."""
