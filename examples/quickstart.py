import asyncio

from casemate import Sandbox


async def main() -> None:
    async with Sandbox() as sandbox:
        execution = await sandbox.run("print(sum(range(10)))")
        print(execution.stdout, end="")


asyncio.run(main())
