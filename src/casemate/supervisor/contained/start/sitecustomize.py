"""Stops an interpreter's start where its program begins: it waits here for that, with what it was to load.

The site module runs this last thing before the program, as it does `start`, of which this is the twin for a cell in a
container of its own, where nothing is forked.
"""

import os
import sys

_HERE = os.path.dirname(__file__)
sys.path[:] = [place for place in sys.path if place != _HERE]  # the environment may have a sitecustomize of its own
sys.path_importer_cache.pop(_HERE, None)
try:
    from casemate.supervisor import zygote

    names = sys._xoptions.pop("casemate")
    zygote.wait_alone(names.split(",") if isinstance(names, str) and names else [])
except BaseException:  # noqa: BLE001 - nobody is left to tell
    import traceback

    traceback.print_exc()
    os._exit(125)
