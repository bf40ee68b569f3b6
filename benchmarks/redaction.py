"""The speed of redacting a program's output: megabytes a second, with one secret and with twenty.

The output comes in pieces of 64 KiB, as from a pipe. It holds secrets only in the rows that say so. Random base64 and
bytes share prefixes with forms of secrets much more often than text does. At an ellipsis, which marks a cut, redaction
also looks for partial secrets on both sides.
"""

from __future__ import annotations

import base64
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from casemate.redaction.redaction import Redaction

_PIECE = 64 << 10
_PIECES = 64  # 4 MiB in each sample
_FEW = 2  # pieces for slow cases, which take a hundred times as long
_LINE = b"2026-01-01T00:00:00Z worker-7 handled request 4711 for /api/v1/items?page=3&size=50 in 12.7 ms\n"
_CUT_LINE = b"17   2026-01-01  a description that is too long for its column, and so it was cut...   4711   12.7\n"
_GOALS = {1: 300.0, 20: 50.0}  # MB/s
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def main() -> None:
    """Measure and print."""
    run = measure.Run("redaction", __doc__ or "")
    rounds = run.rounds(60)
    rows: list[tuple[str, ...]] = [("", "n", "forms", "MB/s, p50", "MB/s, p99", "goal", "")]
    data: list[dict[str, Any]] = []
    for number, goal in _GOALS.items():
        secrets = _secrets(number)
        redaction = Redaction(secrets)
        for kind, piece in _kinds(next(iter(secrets.values()))).items():
            pieces = _FEW if "for ever" in kind else _PIECES
            seconds = [_once(redaction, piece, pieces) for _ in range(rounds + 1)][1:]
            p50, p99 = (pieces * len(piece) / one / 1e6 for one in (statistics.median(seconds), _p99(seconds)))
            name = f"{number} secret{'s' * (number > 1)}, {kind}"
            reached = measure.word(p50 >= goal)
            forms = str(len(redaction._forms.forms))
            rows.append((name, str(rounds), forms, f"{p50:.0f}", f"{p99:.0f}", f"{goal:.0f}", reached))
            data.append({"name": name, "p50": p50, "p99": p99, "goal": goal, "seconds": seconds})
    run.table("taken out of a stream", rows, data)
    series = [measure.Series(f"made for {number}", tuple(_made(number) for _ in range(rounds))) for number in _GOALS]
    run.compare("made anew for a run", series)
    run.finish()


def _secrets(number: int) -> dict[str, str]:
    chance = random.Random(number)  # the same bytes in each run
    return {f"TOKEN_{n}": "".join(chance.choices(_ALPHABET, k=40)) for n in range(number)}


def _kinds(secret: str) -> dict[str, bytes]:
    text = (_LINE * (_PIECE // len(_LINE) + 1))[:_PIECE]
    cut = (_CUT_LINE * (_PIECE // len(_CUT_LINE) + 1))[:_PIECE]
    return {
        "text": text,
        "text with a secret in each piece": text[: -len(secret)] + secret.encode(),
        "text with an ellipsis in each line": cut,
        "the same with … instead of dots": cut.replace(b"...", "…".encode()),
        "the first bytes of a secret and an ellipsis, for ever": (secret[:4].encode() + b"...") * (_PIECE // 7),
        "base64": base64.b64encode(os.urandom(_PIECE * 3 // 4)),
        "bytes at random": os.urandom(_PIECE),
    }


def _once(redaction: Redaction, piece: bytes, pieces: int) -> float:
    stream = redaction.stream()
    start = time.perf_counter()
    for _ in range(pieces):
        stream.feed(piece)
    stream.finish()
    return time.perf_counter() - start


def _made(number: int) -> float:
    secrets = _secrets(number)
    start = time.perf_counter()
    Redaction(secrets).prepare()
    return time.perf_counter() - start


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[math.ceil(len(seconds) * 0.99) - 1]


if __name__ == "__main__":
    main()
