"""A sandbox in the user's service. Background runs and open sessions continue after this program ends."""

import asyncio

from casemate import Sandbox


async def main() -> None:
    async with await Sandbox.connect() as sandbox:  # starts the service unless it runs
        execution = await sandbox.run("print(2 + 2)")
        print(execution.stdout, end="")

        async with sandbox.session(name="notes") as session:
            await session.run("x = 20")
            print((await session.run("x + 1")).text)

        run = sandbox.start("print('still here')")
        print((await run.wait()).stdout, end="")


asyncio.run(main())
