"""What the bundle starts: casemate's MCP server, with the settings that its user made in the client."""

import os
import sys

from casemate.surfaces.cli import main

# A setting that nobody made arrives empty, or as the text that would have been replaced.
for name in [name for name in os.environ if name.startswith("CASEMATE_")]:
    if not os.environ[name].strip() or os.environ[name].startswith("${user_config."):
        del os.environ[name]

sys.argv = ["casemate", "serve"]
main()
