"""`make torture MINUTES=30`, or `python -m torture --minutes 30 --only fuzz --seed 7`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

PARTS = ("kills", "elastic", "writers", "fuzz", "surroundings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="torture", description="Attack the toolkit and count what happens.")
    parser.add_argument("--minutes", type=float, default=10.0, help="budget, shared by the parts (default: 10)")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part alone; repeatable")
    parser.add_argument("--target", help="only targets whose name contains this text")
    parser.add_argument("--cases", type=int, help="stop a target after this number of cases")
    parser.add_argument("--at", type=int, help="disturb writers at this file operation alone")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (default: 1)")
    parser.add_argument("--place", type=Path, help="folder for temporary files (default: in memory, if possible)")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    place = given.place or (Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix="torture-", dir=place) as folder:
        os.environ["CHAINRULE_CACHE"] = str(Path(folder) / "cache")
        from torture.campaign import run

        return run(given, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
