import asyncio

from casemate import ApprovalRequest, Sandbox

PROGRAM = """
import urllib.request
try:
    print(urllib.request.urlopen("https://collector.example.net/", timeout=10).status)
except OSError as error:
    print("not reached:", type(error).__name__)
"""


async def approve(request: ApprovalRequest) -> bool:
    print("asked:", request.summary)
    return False


async def main() -> None:
    async with Sandbox(allowed_domains=["pypi.org", "*.pythonhosted.org"], approve=approve) as sandbox:
        execution = await sandbox.run(PROGRAM)
        print(execution.text)
        for crossing in execution.crossings:
            print(crossing.host, crossing.port, crossing.decision)


asyncio.run(main())
