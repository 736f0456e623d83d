"""Files that should not be read whole, or not be kept whole."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from benchmarks import _data
from benchmarks._measure import PEER, Bench, Open, alternate
from benchmarks._row import Row, Unit

__all__ = ["memory", "single_rollout"]

# The peer keeps a multiple of a file in memory, so it gets this part of it.
PEER_PART = 8
# Iteration, group and trajectory of the fourth record.
WANTED = (0, 0, 3)


def memory(bench: Bench) -> list[Row]:
    """Memory that `read_metrics` of 1 GB takes in a fresh process."""
    size = bench.scale.count(1_000_000_000)
    block = _data.lines(bench.scale.count(10_000), _data.eight_floats)
    whole, part = bench.new_folder(), bench.new_folder()
    _data.repeat_block(whole / _data.METRICS, block, size)
    _data.repeat_block(part / _data.METRICS, block, size // PEER_PART)
    contenders = {"runstore": lambda: _peak(bench, "runstore", whole, "read_metrics")}
    if bench.peer is not None:
        contenders["peer"] = lambda: _peak(bench, PEER, part, "read_metrics")
    samples = alternate(min(bench.scale.rounds, 3), contenders)
    shutil.rmtree(whole)
    shutil.rmtree(part)
    what = f"memory for read_metrics of {size / 1e6:,.0f} MB (peer: of {size / PEER_PART / 1e6:,.0f} MB)"
    return [Row(what, Unit.MEGABYTES, samples, at_most=80e6)]


def single_rollout(bench: Bench) -> list[Row]:
    """One of the first records of 2 GB of rollouts, or of half of the disk's room: seconds and memory."""
    size = min(bench.scale.count(2_000_000_000), shutil.disk_usage(bench.folder).free // 2)
    block = _data.lines(bench.scale.count(512, 8), _data.rollout)
    whole, part = bench.new_folder(), bench.new_folder()
    _data.repeat_block(whole / _data.ROLLOUTS, block, size)
    _data.repeat_block(part / _data.ROLLOUTS, block, size // PEER_PART)
    openers = bench.openers()

    def find(opener: Open, root: Path) -> float:
        store = opener(root)
        start = time.perf_counter()
        record = store.read_single_rollout(*WANTED)
        seconds = time.perf_counter() - start
        assert record["traj_idx"] == 3
        return seconds

    contenders = {"runstore": lambda: find(openers["runstore"], whole)}
    if "peer" in openers:
        contenders["peer"] = lambda: find(openers["peer"], part)
    samples = alternate(min(bench.scale.rounds, 5), contenders)
    memory = {"runstore": lambda: _peak(bench, "runstore", whole, "read_single_rollout", *WANTED)}
    if "peer" in openers:
        memory["peer"] = lambda: _peak(bench, PEER, part, "read_single_rollout", *WANTED)
    peaks = alternate(1, memory)
    shutil.rmtree(whole)
    shutil.rmtree(part)
    what = (
        f"read_single_rollout near the start of {size / 1e6:,.0f} MB "
        f"(peer: of {size / PEER_PART / 1e6:,.0f} MB)"
    )
    return [
        Row(what, Unit.MILLISECONDS, samples, times_peer=100, at_most=0.1),
        Row(f"memory for {what}", Unit.MEGABYTES, peaks, at_most=4e6),
    ]


def _peak(bench: Bench, package: str, *call: object) -> float:
    """Memory that a call takes in a fresh process."""
    return bench.child_value("_child_memory.py", package, *call)
