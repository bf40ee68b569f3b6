"""Compares a benchmark of two commits, in alternating runs on this machine.

    python -m benchmarks.compare HEAD~5 HEAD
    python -m benchmarks.compare v1 HEAD --benchmark sessions.py --turns 6 --quick

Each commit is checked out into a separate folder and runs its own copy of the benchmark with this interpreter. They
take turns, and each turn begins with the other commit. For each name that both measure, the table has the medians of
all samples and their ratio. It also has the least and the greatest ratio of a single turn, which show the noise. The
benchmarks' own output is discarded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks.measure import duration

ROOT = Path(__file__).resolve().parents[1]
Samples = dict[tuple[str, str], list[float]]  # by table and name, in seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="the one to compare with, and the other one")
    parser.add_argument("--benchmark", default="one_shot.py", metavar="FILE", help="one of benchmarks/ (one_shot.py)")
    parser.add_argument("--turns", type=int, default=4, help="of each commit (4)")
    parser.add_argument("--quick", action="store_true", help="few repetitions in each turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="casemate-compare-") as folder:
        trees = [check_out(commit, Path(folder, str(number))) for number, commit in enumerate(options.commits)]
        turns: tuple[list[Samples], list[Samples]] = ([], [])
        for turn in range(options.turns):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                print(f"turn {turn + 1} of {options.turns}: {options.commits[side]}", file=sys.stderr)
                turns[side].append(run(trees[side], options.benchmark, quick=options.quick))
    tell(options.commits, *turns)


def check_out(commit: str, place: Path) -> Path:
    """Check out the files of a commit, and build its part in machine code if it has one."""
    place.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)
    builder = place / "packaging" / "build_init.py"
    if builder.exists():
        subprocess.run([sys.executable, builder], check=True)
    return place


def run(tree: Path, benchmark: str, *, quick: bool) -> Samples:
    """Run the benchmark of ``tree`` once. Returns its samples."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, f"{tree}/benchmarks/{benchmark}", "--json", file.name]
        command += ["--quick"] if quick else []
        env = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"}
        subprocess.run(command, cwd=tree, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        tables = json.loads(Path(file.name).read_text())["tables"]
    found = {(table["title"], row["name"]): row.get("seconds") for table in tables for row in table["rows"]}
    return {key: [one] if isinstance(one, float) else one for key, one in found.items() if one}


def tell(commits: list[str], before: list[Samples], after: list[Samples]) -> None:
    """Print the results of both commits, table by table."""
    titles: dict[str, list[str]] = defaultdict(list)
    for title, name in before[0].keys() & after[0].keys():
        titles[title].append(name)
    for title in (title for title in dict.fromkeys(title for title, _ in before[0]) if title in titles):
        print(f"\n{title}\n  {'':40} {commits[0]:>12} {commits[1]:>12}  ratio  of single turns")
        for name in (name for at, name in before[0] if at == title and name in titles[title]):
            medians = [[statistics.median(turn[title, name]) for turn in side] for side in (before, after)]
            old, new = (
                statistics.median(second for turn in side for second in turn[title, name]) for side in (before, after)
            )
            ratios = sorted(two / one for one, two in zip(*medians, strict=True))
            spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
            print(f"  {name:40} {duration(old):>12} {duration(new):>12}  {new / old:5.2f}  {spread}")


if __name__ == "__main__":
    main()
