"""The cost of collecting an artifact of 64 MiB and of signing the statement of its run, against `sha256sum`.

The artifact is copied and hashed in one pass, as at the end of a run. Signing reads the rows of the run and makes a
statement from them. Other rows show making a statement alone, and verifying it with the public key.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series
from casemate.artifacts.collect import collect
from casemate.audit.log import AuditLog
from casemate.audit.reading import Audit
from casemate.evidence.keys import Signer
from casemate.evidence.pack import check_statement
from casemate.evidence.statement import to_json
from casemate.execution.digests import outputs
from casemate.execution.evidence import Evidence
from casemate.model.execution import Artifact, Execution, Usage
from casemate.model.isolation import IsolationReport

_SIZE = 64 << 20
_REPORT = IsolationReport("native", "shared", (), (), (), 0.0, ())
_INTENT = {"language": "python", "code": "", "wall": "native", "workspace": "private", "network": "none",
           "allowed_domains": [], "deadline": 60, "limits": {}, "dependencies": {"code": "0" * 64}}  # fmt: skip


def main() -> None:
    """Measure and print."""
    run = measure.Run("evidence", __doc__ or "")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="casemate-evidence-") as temporary:
        folder = Path(temporary)
        (folder / "left").mkdir()
        (folder / "left" / "artifact").write_bytes(os.urandom(_SIZE))
        signer = Signer(folder / "signing")
        log = AuditLog(folder / "audit.db", signer=signer)
        evidence = Evidence(log, Audit(log, "default"), "default")
        signer.sign(b"")  # the first call makes the key
        for number in range(run.rounds(40)):
            for name, seconds in _once(folder / "left", log, evidence, signer, f"{number:032}").items():
                found.setdefault(name, []).append(seconds)
        log.close()
    goals = {"taken, hashed and signed": Goal(times=2.0)}
    run.compare("an artifact of 64 MiB", [Series(name, tuple(one), goals.get(name)) for name, one in found.items()])
    run.finish()


def _once(left: Path, log: AuditLog, evidence: Evidence, signer: Signer, run: str) -> dict[str, float]:
    bare = _time(lambda: subprocess.run(["sha256sum", left / "artifact"], check=True, stdout=subprocess.DEVNULL))
    fd = os.open(left, os.O_RDONLY)
    taken: list[Artifact] = []
    took = _time(lambda: taken.extend(collect(fd).files))
    os.close(fd)
    execution = Execution(
        run, "ok", 0, "", "", "", (), None, tuple(taken), None, False, Usage(0, 0, 0), 0.0, None, _REPORT
    )  # fmt: skip
    digests = {f"{name}_sha256": digest for name, digest in outputs(execution).items()}
    ended = {"status": "ok", "exit_code": 0, "cause": None, "error": None, "duration": 0.0}
    log.append("intent", run, "default", _INTENT)
    log.append("outcome", run, "default", {**ended, **digests, "artifacts": {one.name: one.sha256 for one in taken}})
    envelopes: list[bytes] = []
    signed = _time(lambda: envelopes.append(to_json(evidence.sign(run, execution))))
    keys = signer.public_keys()
    checked = _time(lambda: check_statement(envelopes[0], keys))
    both = took + signed
    return {"sha256sum": bare, "taken, hashed and signed": both, "signed alone": signed, "checked": checked}


def _time(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
