"""The kernels as functions, and weights as they read them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.llvm_text import LANES
from vermilion.quantize.native_code import machine_code
from vermilion.quantize.native_run.text import (
    CHANNELWISE,
    KERNELS,
    MIDDLE,
    NARROW,
    WIDE,
    Kernel,
    kernels_text,
)

_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512bf16")


@cache
def processor_has_bfloat16() -> bool:
    """Say whether this CPU multiplies pairs of bfloat16 in 512-bit registers."""
    features = llvm.get_host_cpu_features()
    return all(features.get(name, False) for name in _FEATURES)


@cache
def functions() -> dict[str, Callable[..., None]]:
    """Return the kernels by name; the first time they are compiled (measured: 35 ms)."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kinds = {kernel.name: ctypes.CFUNCTYPE(None, pointer) for kernel in KERNELS}
    rows = ctypes.CFUNCTYPE(None, pointer, pointer, number, number, number, number)
    return machine_code(kernels_text(), {**kinds, "round_rows": rows})


def round_rows(source: NDArray[np.float32], target: NDArray[np.uint16]) -> None:
    """Round rows to bfloat16, half to even; (R, n) each, where rows may lie apart."""
    rows, size = source.shape
    functions()["round_rows"](
        source.ctypes.data,
        target.ctypes.data,
        rows,
        size,
        source.strides[0] // source.itemsize,
        target.strides[0] // target.itemsize,
    )


def aligned(count: int) -> NDArray[np.uint32]:
    """Return zeros, 32 bits each, that begin at a cache line."""
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + 4 * count].view(np.uint32)


def cut(vectors: int) -> Iterator[tuple[Kernel, int, int]]:
    """Yield kernels for so many vectors of channels, each with its first one and its blocks."""
    first = 0
    for kernel in (WIDE, MIDDLE, NARROW):
        blocks = (vectors - first) // kernel.vectors
        if blocks:
            yield kernel, first, blocks
            first += blocks * kernel.vectors


def pack(weights: NDArray[np.float32]) -> list[tuple[Kernel, int, int, NDArray[np.uint32]]]:
    """Return kernels that together multiply with `weights`, each with what it reads.

    Shapes: weights (O, taps, run) → for each kernel its first vector, its blocks, and pairs of
    bfloat16 as (blocks, taps × steps, vectors × lanes).
    """
    channels, taps, run = weights.shape
    steps = -(-run // 2)
    halves = np.zeros((channels * taps, 2 * steps), np.uint16)
    round_rows(np.ascontiguousarray(weights).reshape(channels * taps, run), halves)
    pairs = halves.view(np.uint32).reshape(channels, taps * steps)
    parts = []
    for kernel, first, blocks in cut(-(-channels // LANES)):
        wide = kernel.vectors * LANES
        packed = aligned(blocks * wide * pairs.shape[1])
        shaped = packed.reshape(blocks, pairs.shape[1], wide)
        for block in range(blocks):
            here = pairs[first * LANES + block * wide :][:wide]
            shaped[block, :, : len(here)] = here.T
        parts.append((kernel, first, blocks, packed))
    return parts


def pack_channelwise(
    weights: NDArray[np.float32],
) -> list[tuple[Kernel, int, int, NDArray[np.uint32]]]:
    """Return the same for weights that each channel has for itself, (C, taps, 1), in float32."""
    channels, taps, _ = weights.shape
    wide = CHANNELWISE.vectors * LANES
    blocks = -(-channels // wide)
    packed = aligned(blocks * taps * wide)
    shaped = packed.view(np.float32).reshape(blocks, taps, wide)
    for block in range(blocks):
        here = weights[block * wide : (block + 1) * wide, :, 0]
        shaped[block, :, : len(here)] = here.T
    return [(CHANNELWISE, 0, blocks, packed)]
