import asyncio

from casemate import ApprovalRequest, Decision, Sandbox


async def approve(request: ApprovalRequest) -> Decision:
    print("asked:", request.summary)
    return Decision(allow=True, scope="session", expires=600)


async def main() -> None:
    async with Sandbox(approve=approve) as sandbox:
        answer = await sandbox.egress.request("example.test", reason="to read the price list")
        print(answer.allowed, answer.scope)
        limits = await sandbox.set_limits(memory="256MiB", wall=20)
        print(limits.memory, limits.wall)
        execution = await sandbox.run("open('left.txt', 'w').write('hello')")
        print(await sandbox.artifacts.read(execution.id, "left.txt"))
        print([(row.kind, row.hash[:8]) for row in await sandbox.audit.tail(3)], (await sandbox.audit.verify()).ok)
        stats = await sandbox.stats()
        print(stats.totals.by_status, stats.cells.mechanism)
        print([(one.language, one.version) for one in await sandbox.runtimes()])


asyncio.run(main())
