import asyncio

from casemate import Sandbox

SERVER = """
import subprocess, sys
open("index.html", "w").write("<h1>hello</h1>")
server = subprocess.Popen([sys.executable, "-m", "http.server", "8000"])
"""


async def main() -> None:
    async with Sandbox() as sandbox, sandbox.session() as session:
        await session.run(SERVER)
        preview = await session.expose(8000)
        print(preview.url)  # http://8000-0e8a...localhost:41979/?casemate-token=...
        print([(one.port, one.url) for one in await session.previews()])
        await session.unexpose(8000)


asyncio.run(main())
