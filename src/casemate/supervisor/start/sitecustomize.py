"""Stops an interpreter's start where every cell's program begins: the zygote waits here, and its children go on.

The site module runs this last thing before the program. What returns from `wait` is a process of a
cell, forked and walled in, and the interpreter itself then runs the program as it runs any other.
"""

import sys

# Where the zygote, and no cell, sees this casemate; the environment may have another.
sys.path.insert(0, __file__.rsplit("/", 4)[0])
try:
    from casemate.supervisor import zygote

    zygote.wait()
except BaseException:  # noqa: BLE001 - nobody is left to tell
    import os
    import traceback

    traceback.print_exc()  # into the zygote's own log, or a cell's: either way it has no program to run
    os._exit(125)
