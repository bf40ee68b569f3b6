"""Lets the Python processes that a program starts find packages that were installed later."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _use_installed_packages() -> None:
    place = f"{os.path.dirname(_HERE)}/python"
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    module = type(sys)("_casemate_packages")
    module.__file__ = f"{place}/packages.py"
    try:
        with open(module.__file__, encoding="utf-8") as file:
            exec(compile(file.read(), module.__file__, "exec"), vars(module))
        variables = {name: os.environ.get(name) for name in ("PYTHONPATH", "PATH")}
        module.use_installed()
        os.environ.update({name: value for name, value in variables.items() if value is not None})
    except OSError:
        pass  # they were removed


_use_installed_packages()
_finder = sys.modules["_frozen_importlib_external"].PathFinder
if _finder.find_spec("sitecustomize") is not None:
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")
