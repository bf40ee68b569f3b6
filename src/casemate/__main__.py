"""``python -m casemate`` is the command ``casemate``."""

import sys

from casemate.surfaces.cli import main

if __name__ == "__main__":
    sys.exit(main())
