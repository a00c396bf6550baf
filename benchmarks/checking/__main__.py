"""Measure the examiner: planted mistakes, mistakes that shipped, and correct attentions.

python benchmarks/checking.py [--folder FOLDER] [--only planted wild right]

Each part is a command of its own (checking_planted.py, checking_wild.py, checking_right.py); this
one runs them in turn and prints their summaries. The wild cases need `checking_wild.py --prepare`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PARTS = {
    "planted": "planted mistakes",
    "wild": "mistakes that shipped, and their mended releases",
    "right": "correct attentions",
}


def run(part: str, folder: Path) -> str:
    """The summary of one part, whose rows go to a file of the folder."""
    command = [sys.executable, str(HERE / f"checking_{part}.py")]
    rows = folder / f"{part}.jsonl"
    start = time.perf_counter()
    done = subprocess.run([*command, "--json", str(rows)], stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        return f"## {PARTS[part]}\n\nfailed with exit status {done.returncode}\n"
    return f"## {PARTS[part]} ({seconds:.0f} s)\n\n{done.stdout.strip()}\n"


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description="Measure the examiner.")
    parser.add_argument("--folder", type=Path, help="where rows are written")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="checking-"))
    folder.mkdir(parents=True, exist_ok=True)
    for part in given.only:
        print(run(part, folder), flush=True)


if __name__ == "__main__":
    main()
