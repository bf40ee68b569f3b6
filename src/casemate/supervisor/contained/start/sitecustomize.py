"""Stops an interpreter's start just before the program: it preloads modules and waits for the program here.

The site module runs this last. It is the counterpart of `start` for a cell in its own container, without forks.
"""

import os
import sys

_HERE = os.path.dirname(__file__)
sys.path[:] = [place for place in sys.path if place != _HERE]  # the environment may have its own sitecustomize
sys.path_importer_cache.pop(_HERE, None)
try:
    from casemate.supervisor import zygote

    names = sys._xoptions.pop("casemate")
    zygote.wait_alone(names.split(",") if isinstance(names, str) and names else [])
except BaseException:  # noqa: BLE001 - this is the last handler
    import traceback

    traceback.print_exc()
    os._exit(125)
