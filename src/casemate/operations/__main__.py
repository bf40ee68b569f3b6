"""``python -m casemate.operations [FOLDER]`` writes the reference and the lock file of operations into a repository."""

import sys
from pathlib import Path

from casemate.operations.reference import write

if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
