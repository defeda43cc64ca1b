"""What this machine's multiply-add units can do, measured: the bar that a model is held against."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vermilion.bench.peak_code import STEPS, TILES, Tile, tile_code
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import load_functions
from vermilion.codegen.object import compile_object
from vermilion.errors import Refusal
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets.find import find_target

# One measurement of each thread; the best of several counts, since others only ever slow it.
BURST_S = 0.03
BURSTS = 5

_ALIGN_BYTES = 64
_TRIAL_CALLS = 200


@dataclass(frozen=True)
class Peak:
    """The measured limit. Units: 10^9 operations a second, a multiply-accumulate counted as two."""

    precision: str
    threads: int
    gops_per_s: float
    instruction: str

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {
            "precision": self.precision,
            "threads": self.threads,
            "gops_per_s": self.gops_per_s,
            "instruction": self.instruction,
        }


def tile_for(precision: str, features: frozenset[str]) -> Tile | Refusal:
    """Choose the fastest tile that a machine with these features can run."""
    for tile in TILES[precision]:
        if tile.features <= features:
            return tile
    return Refusal(f"this processor has no instruction that multiplies {precision}")


def measure_peak(precision: str, threads: int) -> Peak | Refusal:
    """Run the register tile on `threads` threads at once, for a fraction of a second."""
    tile = tile_for(precision, detect_cpu().features)
    if isinstance(tile, Refusal):
        return tile
    return measure_tile(tile, precision, threads)


def measure_tile(tile: Tile, precision: str, threads: int) -> Peak:
    """Run one tile on `threads` threads at once."""
    function = _compiled(tile)
    operands = [_operands(tile) for _ in range(threads)]
    seconds_a_call = _seconds(function, operands[:1], _TRIAL_CALLS) / _TRIAL_CALLS
    calls = max(_TRIAL_CALLS, int(BURST_S / seconds_a_call))
    best_s = min(_seconds(function, operands, calls) for _ in range(BURSTS))
    gops = tile.operations_a_tile * calls * threads / best_s / 1e9
    return Peak(precision, threads, gops, tile.instruction)


def _compiled(tile: Tile) -> Callable[..., None]:
    """Return `peak` of the tile, for this machine."""
    isa = isa_of(find_target("cpu"))
    features = ",".join([isa.llvm_features, *(f"+{name}" for name in sorted(tile.features))])
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)
    isa = replace(isa, llvm_features=features.strip(","))
    return load_functions(compile_object(tile_code(tile), isa), {"peak": kind}, isa)["peak"]


def _operands(tile: Tile) -> tuple[np.ndarray, ...]:
    vector_words = tile.bits // 32
    a = _aligned_words(STEPS * tile.rows, tile.word)
    b = _aligned_words(STEPS * tile.vectors * vector_words, tile.word)
    return a, b, _aligned_words(tile.rows * tile.vectors * vector_words, 0)


def _aligned_words(count: int, word: int) -> np.ndarray:
    room = np.full(count + _ALIGN_BYTES // 4, word, np.uint32)
    skipped = -room.ctypes.data % _ALIGN_BYTES // 4
    return room[skipped : skipped + count]


def _seconds(function: Any, operands: list[tuple[np.ndarray, ...]], calls: int) -> float:
    """Return the time from the common start until the last thread is done."""
    start = threading.Barrier(len(operands) + 1)

    def work(arrays: tuple[np.ndarray, ...]) -> None:
        pointers = [array.ctypes.data for array in arrays]
        start.wait()
        function(*pointers, calls)  # ctypes lets go of the interpreter's lock

    workers = [threading.Thread(target=work, args=(arrays,)) for arrays in operands]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - begin
