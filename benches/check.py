"""Print one table of every bound in this folder; `--check` exits 1 when one is missed."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="benches/check.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    parser.add_argument("subjects", nargs="*", help="modules bench_<subject> (default: all)")
    options = parser.parse_args()
    # `benches` is imported as a package from the root, whatever the working directory is.
    sys.path.insert(0, str(HERE.parent))
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    unknown = [subject for subject in options.subjects if subject not in known]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are: {', '.join(known)})")

    missed = 0
    print(f"{'work':58} {'measured':>9} {'bound':>8}  {'unit':26} verdict", flush=True)
    for subject in options.subjects or known:
        rows = getattr(importlib.import_module(f"benches.bench_{subject}"), "rows", None)
        for row in rows() if rows is not None else ():
            kept = row.ratio <= row.bound
            missed += not kept
            print(
                f"{row.work:58} {row.ratio:9.3f} {row.bound:8.3f}  {row.unit:26}"
                f" {'ok' if kept else 'MISSED'}",
                flush=True,
            )
    print(f"{missed} missed" if missed else "every bound is kept")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
