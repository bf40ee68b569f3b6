"""An agent asks for a command and a file of the host. A rule allows the command; an approver sees the change."""

import asyncio
import tempfile
from pathlib import Path

from casemate import ApprovalRequest, Sandbox


async def approve(request: ApprovalRequest) -> bool:
    print("asked:", request.kind, request.arguments["change"]["diff"].splitlines()[-1])
    return True


async def main(project: Path) -> None:
    (project / "notes.txt").write_text("first line\n")
    policy = {
        "host": {"folder": str(project), "roots": [{"path": str(project), "write": True}]},
        "rules": [{"allow": "host", "command": ["wc", "**"], "options": ["-l"]}],
    }
    async with Sandbox(policy=policy, approve=approve) as sandbox:
        await sandbox.host.write(f"{project}/notes.txt", "first line\nsecond line\n")
        counted = await sandbox.host.exec("wc -l")  # standard input is empty
        print(counted.exit_code, counted.stdout.strip())
        print((await sandbox.host.read(f"{project}/notes.txt")).decode(), end="")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
