"""A host application that runs one hostile program and tells how its own memory grew, in MiB; run by test_resources."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading

from casemate import Limits, sync


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    audit, code = sys.argv[1:3]
    limits = Limits(memory="256MiB", output="64KiB", full_output="8MiB")
    with sync.Sandbox(audit=audit, limits=limits, isolation=os.environ["CASEMATE_ISOLATION"]) as sandbox:
        sandbox.run("print('x' * 100000)")
        before, cpu = peak(), sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        execution = sandbox.run(code, timeout=60)
        told: dict[str, object] = {
            "grown": peak() - before,
            "status": execution.status,
            "cause": execution.cause and execution.cause.code,
        }
        told["cpu"] = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu
        told["next"] = sandbox.run("print(1)").stdout
        print(json.dumps(told))


def beside() -> None:
    """Whether another program runs while the hostile one stays."""
    audit, code = sys.argv[1:3]
    sandbox = sync.Sandbox(audit=audit, isolation=os.environ["CASEMATE_ISOLATION"])
    events = sandbox.stream(code)
    for event in events:
        if "taken" in str(event):
            break
    other = threading.Thread(target=lambda: print(json.dumps({"other": sandbox.run("print(1)").stdout}), flush=True))
    other.daemon = True
    other.start()
    other.join(40)


if __name__ == "__main__":
    beside() if len(sys.argv) > 3 else main()
