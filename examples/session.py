import asyncio

from casemate import Sandbox


async def main() -> None:
    async with Sandbox() as sandbox, sandbox.session() as session:
        await session.run("import math\nradii = [1, 2, 3]")
        step = await session.run("[round(math.pi * r * r, 2) for r in radii]")
        print(step.text)


asyncio.run(main())
