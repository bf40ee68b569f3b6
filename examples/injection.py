import asyncio

from casemate import Inject, Sandbox

TOKEN = "sk-3XamPLe0f4T0kenTh4tN0b0dyHas"

PROGRAM = """
import os, urllib.request
token = os.environ["API_TOKEN"]
print("a token of", len(token), "characters that begins with", token[:3])
request = urllib.request.Request("https://api.example.org/", headers={"Authorization": f"Bearer {token}"})
try:
    print(urllib.request.urlopen(request, timeout=10).status)
except OSError as error:
    print("not reached:", type(error).__name__)
"""


async def main() -> None:
    async with Sandbox(allowed_domains=["api.example.org"]) as sandbox:
        await sandbox.vault.set("API_TOKEN", TOKEN, inject=Inject(["api.example.org"]))
        execution = await sandbox.run(PROGRAM, secrets=["API_TOKEN"])
        print(execution.text)
        plan = await sandbox.explain(PROGRAM, secrets=["API_TOKEN"])
        print("in the cell:", TOKEN in plan.secrets.reveal().values())


asyncio.run(main())
