"""``python -m casemate`` is the command ``casemate``."""

from casemate.surfaces.cli import main

if __name__ == "__main__":
    main()
