import asyncio

from casemate import ApprovalRequest, Decision, Sandbox


async def approve(request: ApprovalRequest) -> Decision:
    is_harmless = request.arguments["command"].startswith("echo ")
    return Decision(allow=is_harmless, reason="" if is_harmless else "only echo is allowed here")


async def main() -> None:
    policy = {"rules": [{"ask": "shell"}]}
    async with Sandbox(approve=approve, policy=policy) as sandbox, sandbox.session() as session:
        print((await session.run("!echo hello")).text)
        step = await session.run("!rm -rf /workspace")
        print(step.error)


asyncio.run(main())
