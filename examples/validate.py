import asyncio

from casemate import Sandbox

CODE = """```python
import os
if True
    os.system(“echo hello”)
```
"""


async def main() -> None:
    async with Sandbox() as sandbox:
        validation = await sandbox.validate(CODE)
        print(validation.verdict, [issue.message for issue in validation.issues])
        print([fix.message for fix in validation.fixes])
        mended = await sandbox.validate(CODE, fix=True)
        print(mended.verdict, mended.fixed_code)
        again = await sandbox.validate(mended.fixed_code or "")
        print(again.verdict, [(issue.line, issue.message) for issue in again.issues])


asyncio.run(main())
