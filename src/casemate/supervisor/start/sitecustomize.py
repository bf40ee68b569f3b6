"""Stops an interpreter's start just before the program: the zygote waits here, and its children go on.

The site module runs this last. `wait` returns only in a process of a cell, behind its walls, and the interpreter then
runs the program in the usual way.
"""

import sys

# Only the zygote sees casemate at this path. The environment may have another casemate.
sys.path.insert(0, __file__.rsplit("/", 4)[0])
try:
    from casemate.supervisor import zygote

    zygote.wait()
except BaseException:  # noqa: BLE001 - this is the last handler
    import os
    import traceback

    traceback.print_exc()  # goes to the log of the zygote or of the cell
    os._exit(125)
