"""A package into a session that runs: shown with its hash, approved, and there."""

import asyncio

from casemate import ApprovalRequest, Sandbox


async def approve(request: ApprovalRequest) -> bool:
    for name, file in zip(request.arguments["packages"], request.arguments["files"], strict=True):
        print("asked:", name, file["sha256"][:12])
    return request.kind == "package"


async def main() -> None:
    async with Sandbox(approve=approve) as sandbox, sandbox.session() as session:
        step = await session.run("%pip install humanize\nimport humanize\nhumanize.naturalsize(123456789)")
        print(step.text)


asyncio.run(main())
